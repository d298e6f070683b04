"""Search over everything a person may see: exact ids first, then names."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q

from apps.accounts.models import User
from apps.accounts.permissions import visible_projects
from apps.inventory.models import Accelerator, Cluster, Node
from apps.jobs.models import Job
from apps.jobs.queries import JobFilters, first_jobs
from apps.jobs.rights import visible_jobs

SHOWN = 20


@dataclass(frozen=True)
class Hit:
    kind: str
    name: str
    detail: str
    link: str
    is_exact: bool = False


def search(user: User, text: str) -> list[Hit]:
    """At most twenty of each kind; an exact id gives that one alone."""
    return _exact(user, text) or _by_name(user, text)


def _exact(user: User, text: str) -> list[Hit]:
    jobs = visible_jobs(user).filter(Q(public_id=text) | Q(external_id=text)).select_related("cluster")[:SHOWN]
    hits = [_job_hit(job, is_exact=True) for job in jobs]
    for node in Node.objects.filter(name=text, retired_at__isnull=True).select_related("cluster")[:SHOWN]:
        hits.append(Hit("node", node.name, str(node.cluster or ""), f"/nodes/{node.pk}/", True))
    for card in Accelerator.objects.filter(uuid=text, node__isnull=False).select_related("node")[:SHOWN]:
        hits.append(Hit("GPU", card.uuid, f"{card.model} in {card.node}", f"/nodes/{card.node_id}/", True))
    return hits


def _by_name(user: User, text: str) -> list[Hit]:
    hits = [_job_hit(job) for job in first_jobs(user, JobFilters(q=text), SHOWN)]
    for node in Node.objects.filter(name__icontains=text, retired_at__isnull=True).order_by("name")[:SHOWN]:
        hits.append(Hit("node", node.name, node.state, f"/nodes/{node.pk}/"))
    for project in visible_projects(user).filter(Q(name__icontains=text) | Q(title__icontains=text))[:SHOWN]:
        hits.append(Hit("project", project.name, project.title, f"/projects/{project.name}/"))
    for cluster in Cluster.objects.filter(Q(name__icontains=text) | Q(title__icontains=text))[:SHOWN]:
        hits.append(Hit("cluster", cluster.name, cluster.title, f"/clusters/{cluster.name}/"))
    if user.is_operator:
        named = Q(username__icontains=text) | Q(last_name__icontains=text) | Q(first_name__icontains=text)
        for person in User.objects.filter(named).order_by("username")[:SHOWN]:
            hits.append(Hit("person", person.username, person.get_full_name(), f"/people/{person.public_id}/"))
    return hits


def _job_hit(job: Job, *, is_exact: bool = False) -> Hit:
    detail = f"{job.state.replace('_', ' ')}, {job.public_id}" + (f", {job.external_id}" if job.external_id else "")
    return Hit("job", job.name, detail, f"/jobs/{job.public_id}/", is_exact)

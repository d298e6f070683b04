"""Who a person is towards a job, and which jobs they may know of."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from apps.accounts.models import Membership, User
from apps.accounts.permissions import roles_in
from apps.core.errors import NotFound
from apps.core.permissions import OWNER, require, site_roles
from apps.jobs.models import Job


def job_roles(user: User, job: Job) -> frozenset[str]:
    """Roles towards the job's project, and `owner` for who submitted it. A job without a project has site roles."""
    roles = roles_in(user, job.project) if job.project is not None else site_roles(user)
    return roles | {OWNER} if job.submitted_by_id == user.pk else roles


def require_for_job(verb: str, user: User, job: Job) -> None:
    require(verb, job_roles(user, job))


def visible_jobs(user: User, jobs: QuerySet[Job] | None = None) -> QuerySet[Job]:
    """Operators see every job; others those of their projects and those they submitted."""
    jobs = Job.objects.all() if jobs is None else jobs
    if user.is_operator:
        return jobs
    projects = list(Membership.objects.filter(user=user).order_by().values_list("project_id", flat=True))
    return jobs.filter(Q(project_id__in=projects) | Q(submitted_by=user))


def visible_job(user: User, public_id: str) -> Job:
    """Raises NotFound when there is none, or none that this person may know of."""
    job = visible_jobs(user).filter(public_id=public_id).select_related("project", "cluster", "submitted_by").first()
    if job is None:
        raise NotFound(f"There is no job {public_id}.")
    return job

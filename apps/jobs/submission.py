"""Submitting: from a spec to committed rows, in one transaction. No scheduler is asked here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from pathlib import Path

from django.conf import settings
from django.db import transaction

from apps.accounts.actions import hours_left, reserve_hours_bulk, unix_identity_for
from apps.accounts.models import Project, User
from apps.accounts.permissions import require_in
from apps.core.audit import audit_fields
from apps.core.errors import Conflict, InvalidInput, OverLimit
from apps.core.models import AuditEntry
from apps.core.units import format_bytes, format_duration
from apps.core.wake import wake
from apps.inventory.models import Cluster, Partition
from apps.jobs.models import Checkpoint, Job, JobEvent, SubmissionKey
from apps.jobs.rights import visible_jobs
from apps.jobs.spec import JobSpec, hours_for

MAX_BATCH = 1000


@dataclass(frozen=True)
class Check:
    """What a submit would do, without doing it. Hours left are None where nothing limits them."""

    spec: JobSpec
    script: str
    gpu_hours: Decimal
    cpu_hours: Decimal
    gpu_hours_left: Decimal | None
    cpu_hours_left: Decimal | None
    notes: tuple[str, ...]


def submit_job(
    project: Project,
    cluster: Cluster,
    spec: JobSpec,
    *,
    by: User,
    idempotency_key: str | None = None,
    copied_from: Job | None = None,
    hold: bool = False,
) -> Job:
    """Store one job for dispatch and reserve its hours. Raises DomainError kinds; then nothing has been stored."""
    with _fields_of_one_job():
        jobs = submit_jobs(
            project, cluster, [spec], by=by, idempotency_key=idempotency_key, copied_from=copied_from, hold=hold
        )
    return jobs[0]


@transaction.atomic
def submit_jobs(
    project: Project,
    cluster: Cluster,
    specs: Sequence[JobSpec],
    *,
    by: User,
    idempotency_key: str | None = None,
    copied_from: Job | None = None,
    hold: bool = False,
) -> list[Job]:
    """Store up to 1,000 jobs, all or none. InvalidInput names fields as `jobs.<place>.<field>`.

    The same `idempotency_key` of the same person with the same content returns the jobs it made the first time, with
    other content it raises Conflict.
    """
    require_in("job.submit", by, project)
    if not 1 <= len(specs) <= MAX_BATCH:
        raise InvalidInput({"jobs": f"{len(specs):,} jobs in one go; from 1 to {MAX_BATCH:,} can be submitted."})
    specs = _validated(specs)
    key = None
    if idempotency_key is not None:
        key = _claim_key(by, idempotency_key, _fingerprint(project, cluster, specs, hold))
        if key.job_ids:
            return _jobs_in_order(key.job_ids)
    _require_open(project, cluster)
    unix_user = _unix_user(by, cluster)
    specs = _within_limits(specs, cluster, by)
    jobs = _store(project, cluster, specs, by, unix_user, copied_from, hold)
    if project.is_metered:
        reserve_hours_bulk(
            project,
            [(f"{job.public_id}:1", *hours_for(job, job.time_limit_s or 0)) for job in jobs],
        )
    if key is not None:
        key.job_ids = [job.pk for job in jobs]
        key.save(update_fields=["job_ids"])
    if not hold:
        wake("jobs.dispatch", *(job.pk for job in jobs), queue=cluster.queue)
    return jobs


def check_job(project: Project, cluster: Cluster, spec: JobSpec, *, by: User, hold: bool = False) -> Check:
    """What `submit_job` would do. Raises what it would raise, and stores nothing."""
    require_in("job.submit", by, project)
    with _fields_of_one_job():
        (spec,) = _validated([spec])
        _require_open(project, cluster)
        if cluster.scheduler != "local":  # there one is made at the first submit, and a check stores nothing
            _unix_user(by, cluster)
        (spec,) = _within_limits([spec], cluster, by)
    gpu_hours, cpu_hours = hours_for(spec, spec.time_limit_s or 0)
    left = hours_left(project)
    for what, wanted, rest in (("GPU", gpu_hours, left.gpu), ("CPU", cpu_hours, left.cpu)):
        if wanted and rest is not None and wanted > rest:
            raise OverLimit(
                f"This needs {wanted:,.2f} {what}-hours and {project} has {rest:,.2f} left. Ask for fewer nodes or "
                "less time, or ask an operator for a larger allocation."
            )
    return Check(spec, spec.script, gpu_hours, cpu_hours, left.gpu, left.cpu, tuple(_notes(spec, cluster, hold)))


def spec_of(job: Job) -> JobSpec:
    """What the job asked for, to be submitted again as it is or changed."""
    return JobSpec(
        name=job.name,
        kind=job.kind or "test",
        script=job.script,
        environment=dict(job.environment),
        working_dir=job.working_dir or None,
        partition=job.partition or None,
        nodes=job.nodes,
        accelerators_per_node=job.accelerators_per_node,
        cpus_per_node=job.cpus_per_node,
        memory_bytes_per_node=job.memory_bytes_per_node,
        time_limit_s=job.time_limit_s,
        qos=job.qos or None,
        reservation=job.reservation or None,
        constraints=job.constraints or None,
        parent_checkpoint=job.parent_checkpoint_id,
        max_retries=job.max_retries,
        tags=tuple(job.tags),
    )


# -- checks -----------------------------------------------------------------------------------------------------------


@contextmanager
def _fields_of_one_job() -> Iterator[None]:
    """`jobs.0.name` is `name` to who handed in one job."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput({name.removeprefix("jobs.0."): text for name, text in error.fields.items()}) from None


def _validated(specs: Sequence[JobSpec]) -> list[JobSpec]:
    done, problems = [], {}
    for place, spec in enumerate(specs):
        try:
            done.append(spec.validated())
        except InvalidInput as error:
            problems.update({f"jobs.{place}.{name}": text for name, text in error.fields.items()})
    if problems:
        raise InvalidInput(problems)
    return done


def _require_open(project: Project, cluster: Cluster) -> None:
    if not project.is_active:
        raise InvalidInput({"project": f"{project} is closed: it takes no new jobs."})
    if not cluster.is_enabled:
        raise InvalidInput({"cluster": f"{cluster} is switched off: it takes no new jobs."})


def _unix_user(by: User, cluster: Cluster) -> str:
    identity = unix_identity_for(by, cluster)
    if identity is None:
        raise InvalidInput({"cluster": f"You have no account on {cluster}; ask an operator of the site for one."})
    return identity.unix_user


def _within_limits(specs: Sequence[JobSpec], cluster: Cluster, by: User) -> list[JobSpec]:
    """The specs with their partition's time limit filled in. Raises InvalidInput for what cannot run here."""
    partitions = {p.name: p for p in Partition.objects.filter(cluster=cluster, retired_at__isnull=True)}
    default = next((p for p in partitions.values() if p.is_default), None)
    parents = {s.parent_checkpoint for s in specs if s.parent_checkpoint is not None}
    known_parents = set(
        Checkpoint.objects.filter(pk__in=parents, job__in=visible_jobs(by)).values_list("pk", flat=True)
        if parents
        else []
    )
    done: list[JobSpec] = []
    problems: dict[str, list[str]] = {}
    for place, spec in enumerate(specs):
        partition = partitions.get(spec.partition) if spec.partition else default
        found = list(_limit_problems(spec, partition, partitions))
        if spec.parent_checkpoint is not None and spec.parent_checkpoint not in known_parents:
            found.append(("parent_checkpoint", "There is no such checkpoint, or you may not see its job."))
        if cluster.scheduler == "local":
            found += [("working_dir", text) for text in _folder_problems(spec.working_dir)]
            found += [(name, f"{cluster} has nothing of the kind; leave it empty.") for name in _foreign(spec)]
        for name, text in found:
            problems.setdefault(f"jobs.{place}.{name}", []).append(text)
        if spec.time_limit_s is None and partition is not None:
            spec = replace(spec, time_limit_s=partition.max_time_s)
        if spec.time_limit_s is None:
            problems.setdefault(f"jobs.{place}.time_limit_s", []).append(
                "Give a time limit: the partition has none of its own, and hours are reserved by it."
            )
        done.append(spec)
    if problems:
        raise InvalidInput(problems)
    return done


def _foreign(spec: JobSpec) -> list[str]:
    """What only a real scheduler has. Folders, too, are its to judge: a job there runs as its owner."""
    return [name for name in ("qos", "reservation", "constraints") if getattr(spec, name)]


def _limit_problems(
    spec: JobSpec, partition: Partition | None, partitions: dict[str, Partition]
) -> Iterator[tuple[str, str]]:
    if partition is None:
        if spec.partition and partitions:
            yield "partition", f"There is no partition {spec.partition!r} here; there is: {', '.join(partitions)}."
        return
    if not partition.is_up:
        yield "partition", f"Partition {partition} is down: it takes no jobs now."
    for name, limit in (
        ("nodes", partition.max_nodes_per_job),
        ("cpus_per_node", partition.max_cpus_per_node),
        ("accelerators_per_node", partition.max_accelerators_per_node),
    ):
        if limit is not None and getattr(spec, name) > limit:
            yield name, f"{getattr(spec, name):,} asked for; the limit of partition {partition} is {limit:,}."
    most = partition.max_memory_bytes_per_node
    if most is not None and (spec.memory_bytes_per_node or 0) > most:
        yield (
            "memory_bytes_per_node",
            f"{format_bytes(spec.memory_bytes_per_node)} asked for; the limit of partition {partition} is "
            f"{format_bytes(most)}.",
        )
    if partition.max_time_s is not None and (spec.time_limit_s or 0) > partition.max_time_s:
        yield (
            "time_limit_s",
            f"{format_duration(spec.time_limit_s)} asked for; the limit of partition {partition} is "
            f"{format_duration(partition.max_time_s)}.",
        )


def _folder_problems(folder: str | None) -> Iterator[str]:
    """A folder that exists here is followed to where it really is; one that does not can be judged by its name only."""
    if folder is None:
        return
    roots = [Path(root).resolve() for root in settings.SWITCHYARD.work_roots]
    if not roots:
        yield "Working folders are not open to jobs on this site; leave it empty: each job gets a folder of its own."
        return
    try:
        real = Path(folder).resolve()
    except (OSError, RuntimeError):
        yield "The path goes in circles or cannot be read."
        return
    if not any(real.is_relative_to(root) for root in roots):
        yield f"The folder must lie in {' or '.join(map(str, settings.SWITCHYARD.work_roots))}, also after its links."


def _notes(spec: JobSpec, cluster: Cluster, hold: bool) -> Iterator[str]:
    if hold:
        yield "It will wait, held, until somebody releases it."
    if cluster.poll_failed_at and (not cluster.poll_succeeded_at or cluster.poll_failed_at > cluster.poll_succeeded_at):
        yield f"{cluster} does not answer now; the job will be handed over when it does."
    if not Partition.objects.filter(cluster=cluster, retired_at__isnull=True).exists():
        yield f"The limits of {cluster} are not known yet, so they were not checked."
    if spec.memory_bytes_per_node is None:
        yield "No memory limit was given: the job may be ended when the machine runs out."


# -- rows -------------------------------------------------------------------------------------------------------------


def _claim_key(by: User, text: str, fingerprint: str) -> SubmissionKey:
    """The row of this key, locked. A second submit at the same moment waits here for the first to commit."""
    SubmissionKey.objects.bulk_create(
        [SubmissionKey(user=by, key=text, fingerprint=fingerprint)], ignore_conflicts=True
    )
    key = SubmissionKey.objects.select_for_update().get(user=by, key=text)
    if key.fingerprint != fingerprint:
        raise Conflict("This Idempotency-Key was used before with other content. Use a new key for a new submission.")
    return key


def _fingerprint(project: Project, cluster: Cluster, specs: Sequence[JobSpec], hold: bool) -> str:
    content = [project.pk, cluster.pk, hold, [asdict(spec) for spec in specs]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _jobs_in_order(pks: Sequence[int]) -> list[Job]:
    found = Job.objects.select_related("project", "cluster", "submitted_by").in_bulk(pks)
    return [found[pk] for pk in pks]


def _store(
    project: Project,
    cluster: Cluster,
    specs: Sequence[JobSpec],
    by: User,
    unix_user: str,
    copied_from: Job | None,
    hold: bool,
) -> list[Job]:
    jobs = Job.objects.bulk_create(
        Job(
            project=project,
            cluster=cluster,
            submitted_by=by,
            unix_user=unix_user,
            name=spec.name,
            kind=spec.kind,
            script=spec.script,
            environment=spec.environment,
            working_dir=spec.working_dir or "",
            partition=spec.partition or "",
            nodes=spec.nodes,
            accelerators_per_node=spec.accelerators_per_node,
            cpus_per_node=spec.cpus_per_node,
            memory_bytes_per_node=spec.memory_bytes_per_node,
            time_limit_s=spec.time_limit_s,
            qos=spec.qos or "",
            reservation=spec.reservation or "",
            constraints=spec.constraints or "",
            parent_checkpoint_id=spec.parent_checkpoint,
            max_retries=spec.max_retries,
            tags=list(spec.tags),
            copied_from=copied_from,
            is_held=hold,
            reason="held before it was handed to the scheduler" if hold else "",
        )
        for spec in specs
    )
    text = f"submitted to {cluster}" + (", held" if hold else "")
    JobEvent.objects.bulk_create(JobEvent(job=job, kind="submitted", text=text, actor_name=by.username) for job in jobs)
    AuditEntry.objects.bulk_create(
        AuditEntry(
            **audit_fields(
                "job.submit",
                by=by,
                target=job,
                after={"cluster": cluster.name, "nodes": job.nodes, "kind": job.kind, "held": hold},
                project_id=project.pk,
            )
        )
        for job in jobs
    )
    return jobs

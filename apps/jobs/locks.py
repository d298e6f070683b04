"""Row locks, always in the same order: the job, then its attempt. Inside a transaction.

Weaker than a plain FOR UPDATE, so that rows which only point to them (events, checkpoints) can be added meanwhile.
"""

from __future__ import annotations

from apps.core.errors import NotFound
from apps.jobs.models import Job, JobAttempt


def lock_job(job_pk: int) -> Job:
    """Raises NotFound."""
    job = (
        Job.objects.select_for_update(of=["self"], no_key=True)
        .select_related("project", "cluster", "submitted_by")
        .filter(pk=job_pk)
        .first()
    )
    if job is None:
        raise NotFound("There is no such job any more.")
    return job


def lock_attempt(attempt: JobAttempt) -> tuple[Job, JobAttempt]:
    """The attempt's job and the attempt, as they are now."""
    job = lock_job(attempt.job_id)
    attempts = JobAttempt.objects.select_for_update(of=["self"], no_key=True).select_related("cluster")
    locked = attempts.get(pk=attempt.pk)
    locked.job = job
    return job, locked

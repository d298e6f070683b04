"""Cancel, hold and release: what people want of a job that exists.

Before a job is handed to the scheduler it is ours alone, so the row is changed at once. Afterwards the wish is written
on the row and a worker carries it out (carry_out.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.core.audit import record
from apps.core.errors import Conflict, DomainError, InvalidInput
from apps.core.wake import wake
from apps.jobs.ending import end_job
from apps.jobs.locks import lock_job
from apps.jobs.models import Job, JobEvent, Wanted
from apps.jobs.rights import require_for_job, visible_job
from apps.jobs.states import ACTIVE, FINAL, JobState

MAX_CANCEL = 1000


@dataclass
class CancelResult:
    """Public ids that will be cancelled, and why others will not."""

    cancelled: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


@transaction.atomic
def cancel_job(job: Job, *, by: User, reason: str = "") -> Job:
    """End the job wherever it is. Asking twice is asking once. Raises Conflict when it has ended."""
    job = lock_job(job.pk)
    require_for_job("job.cancel", by, job)
    if job.state in FINAL:
        raise Conflict(f"{job.name} has already ended ({_words(job.state)}).")
    if job.wanted == Wanted.CANCEL:
        return job
    text = f"cancelled by {by.username}" + (f": {reason}" if reason else "")
    _audit("job.cancel", job, by, {"state": job.state}, {"wanted": "cancel", "reason": reason})
    if job.state == JobState.QUEUED:
        end_job(job, JobState.CANCELLED, text)
        return job
    _want(job, Wanted.CANCEL, text[:300], by)
    return job


@transaction.atomic
def hold_job(job: Job, *, by: User) -> Job:
    """Keep a waiting job from starting. Raises Conflict once it runs or has ended."""
    job = lock_job(job.pk)
    require_for_job("job.hold", by, job)
    _require_waiting(job, "held")
    if job.wanted == Wanted.HOLD or (job.is_held and job.wanted == Wanted.NOTHING):
        return job
    _audit("job.hold", job, by, {"held": job.is_held}, {"held": True})
    if job.state == JobState.QUEUED:
        job.is_held, job.reason = True, f"held by {by.username}"
        job.save(update_fields=["is_held", "reason", "updated_at"])
        _event(job, "held", f"held by {by.username}", by)
    else:
        _want(job, Wanted.HOLD, f"held by {by.username}", by)
    return job


@transaction.atomic
def release_job(job: Job, *, by: User) -> Job:
    """Let a held job start. Raises Conflict when it is not waiting."""
    job = lock_job(job.pk)
    require_for_job("job.release", by, job)
    _require_waiting(job, "released")
    if job.wanted == Wanted.RELEASE or (not job.is_held and job.wanted == Wanted.NOTHING):
        return job
    _audit("job.release", job, by, {"held": job.is_held}, {"held": False})
    if job.state == JobState.QUEUED:
        job.is_held, job.reason = False, ""
        job.save(update_fields=["is_held", "reason", "updated_at"])
        _event(job, "released", f"released by {by.username}", by)
        wake("jobs.dispatch", job.pk, queue=job.cluster.queue)
    else:
        _want(job, Wanted.RELEASE, f"released by {by.username}", by)
    return job


def cancel_jobs(public_ids: Sequence[str], *, by: User, reason: str = "") -> CancelResult:
    """Cancel each that can be; one that cannot does not stop the others."""
    if not 1 <= len(public_ids) <= MAX_CANCEL:
        raise InvalidInput({"ids": f"{len(public_ids):,} jobs; from 1 to {MAX_CANCEL:,} can be cancelled in one go."})
    result = CancelResult()
    for public_id in dict.fromkeys(public_ids):
        try:
            cancel_job(visible_job(by, public_id), by=by, reason=reason)
            result.cancelled.append(public_id)
        except DomainError as error:  # an answer for this job, not for the request
            result.skipped[public_id] = error.message
    return result


def _require_waiting(job: Job, what: str) -> None:
    if job.state in FINAL:
        raise Conflict(f"{job.name} has already ended ({_words(job.state)}).")
    if job.state in ACTIVE:
        raise Conflict(f"{job.name} is running and can no longer be {what}; it can be cancelled.")
    if job.wanted == Wanted.CANCEL:
        raise Conflict(f"{job.name} is being cancelled.")


def _want(job: Job, wanted: Wanted, text: str, by: User) -> None:
    job.wanted, job.wanted_reason, job.updated_at = wanted, text, timezone.now()
    job.save(update_fields=["wanted", "wanted_reason", "updated_at"])
    _event(job, f"{wanted.value}.asked", f"{text} (asked)", by)
    wake("jobs.carry_out", job.pk, queue=job.cluster.queue)


def _event(job: Job, kind: str, text: str, by: User) -> None:
    JobEvent.objects.create(job=job, kind=kind, text=text[:1000], actor_name=by.username)


def _audit(verb: str, job: Job, by: User, before: dict[str, object], after: dict[str, object]) -> None:
    record(verb, by=by, target=job, before=before, after=after, project_id=job.project_id)


def _words(state: str) -> str:
    return state.replace("_", " ")

"""How a job or an attempt ends: its state, its hours, its cards, and whether it is tried again.

Everything here runs in the caller's transaction, which holds the job's row lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.db import transaction
from django.utils import timezone

from apps.accounts.actions import notify, reserve_hours, settle_hours
from apps.core.errors import OverLimit
from apps.core.units import hours
from apps.inventory.actions import close_accelerator_uses
from apps.jobs.models import Job, JobAttempt, JobEvent, Wanted
from apps.jobs.spec import hours_for
from apps.jobs.states import FAILURES, RETRYABLE, JobState

RETRY_AFTER_S = 5


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. `started_at` None: it never ran. At most one of exit code and signal is set."""

    state: JobState
    reason: str
    ended_at: datetime
    started_at: datetime | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    last_words: str = ""


def end_job(job: Job, state: JobState, reason: str, ended_at: datetime | None = None) -> None:
    """End a job that has no attempt at the scheduler: gives back the hours reserved for its next one."""
    settle_hours(f"{job.public_id}:{job.attempt_count + 1}", gpu_hours=Decimal(0), cpu_hours=Decimal(0))
    _finish(job, state, reason, ended_at or timezone.now())


def end_attempt(job: Job, attempt: JobAttempt, ending: Ending) -> None:
    """Close the attempt, settle its hours, then queue the job again or end it."""
    attempt.state, attempt.reason = ending.state, ending.reason[:1000]
    attempt.started_at, attempt.ended_at = ending.started_at, ending.ended_at
    attempt.exit_code, attempt.exit_signal = ending.exit_code, ending.exit_signal
    attempt.last_words, attempt.claimed_until = ending.last_words[:500], None
    attempt.settled_at = timezone.now()
    attempt.save()
    _settle(job, attempt, ending)
    close_accelerator_uses(attempt.key, ending.ended_at)
    if attempt.task_index is None:
        text = ending.reason or ending.state.replace("_", " ")
        event(job, f"state.{ending.state}", text, attempt=attempt, at=ending.ended_at)
    else:
        # The array ends with its last task.
        job.save(update_fields=["gpu_hours", "cpu_hours", "updated_at"])
        return
    if attempt.number != job.attempt_count:
        job.save(update_fields=["gpu_hours", "cpu_hours", "updated_at"])
        return
    job.exit_code, job.exit_signal = ending.exit_code, ending.exit_signal
    if not _queue_again(job, ending):
        _finish(job, ending.state, ending.reason, ending.ended_at)


def event(
    job: Job, kind: str, text: str, *, attempt: JobAttempt | None = None, at: datetime | None = None, actor: str = ""
) -> None:
    JobEvent.objects.create(
        job=job, attempt=attempt, kind=kind, text=text[:1000], at=at or timezone.now(), actor_name=actor
    )


def _settle(job: Job, attempt: JobAttempt, ending: Ending) -> None:
    if job.is_array and attempt.task_index is None:  # its hours are those of its tasks, counted as each ended
        settle_hours(attempt.key, gpu_hours=job.gpu_hours or Decimal(0), cpu_hours=job.cpu_hours or Decimal(0))
        return
    seconds = (ending.ended_at - ending.started_at).total_seconds() if ending.started_at else 0.0
    seconds = max(0.0, seconds)
    gpu_hours, cpu_hours = hours_for(job, seconds)
    # What was given counts, where it is known: four cards may be three on one node and one on another.
    if attempt.accelerators is not None:
        gpu_hours = hours(seconds, attempt.accelerators)
    if attempt.cpus is not None:
        cpu_hours = hours(seconds, attempt.cpus)
    settle_hours(attempt.key, gpu_hours=gpu_hours, cpu_hours=cpu_hours)
    job.gpu_hours = (job.gpu_hours or Decimal(0)) + gpu_hours
    job.cpu_hours = (job.cpu_hours or Decimal(0)) + cpu_hours


def _queue_again(job: Job, ending: Ending) -> bool:
    """Whether the job got another attempt. One that never started was refused, and would be refused again."""
    if (
        ending.state not in RETRYABLE
        or ending.started_at is None
        or job.wanted == Wanted.CANCEL
        or job.attempt_count > job.max_retries
    ):
        return False
    number = job.attempt_count + 1
    if job.project is not None and job.project.is_metered:
        gpu_hours, cpu_hours = hours_for(job, job.time_limit_s or 0)
        try:
            with transaction.atomic():
                reserve_hours(job.project, f"{job.public_id}:{number}", gpu_hours=gpu_hours, cpu_hours=cpu_hours)
        except OverLimit as error:  # not an error of this poll: the job just is not tried again
            event(job, "retry.refused", f"not tried again: {error.message}")
            return False
    job.state, job.reason = JobState.QUEUED, f"waits to be tried again (attempt {number} of {job.max_retries + 1})"
    job.external_id, job.is_held, job.started_at = "", job.wanted == Wanted.HOLD, None
    job.wanted, job.wanted_reason, job.progress, job.progress_text = Wanted.NOTHING, "", None, ""
    job.not_before = timezone.now() + timedelta(seconds=RETRY_AFTER_S)
    job.save()
    event(job, "retry", job.reason)
    return True


def _finish(job: Job, state: JobState, reason: str, at: datetime) -> None:
    had_attempt = job.attempt_count > 0
    job.state, job.reason, job.ended_at = state, reason[:1000], at
    job.is_held, job.wanted, job.wanted_reason = False, Wanted.NOTHING, ""
    job.gpu_hours, job.cpu_hours = job.gpu_hours or Decimal(0), job.cpu_hours or Decimal(0)
    job.expected_start_at = None
    job.save()
    if not had_attempt:
        event(job, f"state.{state}", reason or state.replace("_", " "), at=at)
    if job.submitted_by is not None and state != JobState.CANCELLED:
        words = f"{job.name}: {state.replace('_', ' ')}" + (f" — {reason}" if state in FAILURES and reason else "")
        notify(
            job.submitted_by,
            key=f"job:{job.public_id}:ended",
            level="bad" if state in FAILURES else "info",
            text=words[:500],
            link=f"/jobs/{job.public_id}/",
        )

"""One attempt, brought up to what its scheduler says of it. Rows and events change only when something did."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from apps.inventory.actions import open_accelerator_uses
from apps.jobs.ending import Ending, end_attempt, event
from apps.jobs.ingest import ingest_metrics, last_words
from apps.jobs.locks import lock_attempt
from apps.jobs.models import Job, JobAttempt, Wanted
from apps.jobs.schedulers.base import ObservedJob
from apps.jobs.states import FAILURES, FINAL, JobState, next_state


def differs(attempt: JobAttempt, observed: ObservedJob) -> bool:
    if next_state(attempt.state, observed.state) is not None or attempt.missing_since is not None:
        return True
    if attempt.state in FINAL:
        return False
    job = attempt.job
    told = (observed.held, observed.reason[:1000], observed.expected_start_at)
    return (job.is_held, job.reason, job.expected_start_at) != told or any(
        getattr(attempt, name) != value for name, value in _facts(attempt, observed).items()
    )


def _facts(attempt: JobAttempt, observed: ObservedJob) -> dict[str, object]:
    facts: dict[str, object] = {
        "started_at": observed.started_at,
        "nodes": list(observed.nodes),
        "reason": observed.reason[:1000],
        "cpus": observed.cpus if observed.started_at else attempt.cpus,
        "accelerators": observed.accelerator_count if observed.started_at else attempt.accelerators,
    }
    if observed.folder is not None or not attempt.folder:  # else its output comes here by itself, and stands elsewhere
        facts |= {
            "folder": observed.folder or "",
            "stdout_path": observed.stdout_path or "",
            "stderr_path": observed.stderr_path or "",
            "metrics_path": observed.metrics_path or "",
        }
    return facts


def apply(attempt: JobAttempt, observed: ObservedJob) -> None:
    is_last_look = observed.state in FINAL
    with transaction.atomic():
        job, attempt = lock_attempt(attempt)
        new = next_state(attempt.state, observed.state)
        if attempt.state not in FINAL:
            for name, value in _facts(attempt, observed).items():
                setattr(attempt, name, value)
        attempt.missing_since = None
        attempt.save()
        if new is None or not is_last_look:
            _move_on(job, attempt, observed, new)
            return
    # Outside the transaction, since both read the job's files.
    ingest_metrics(attempt.pk, to_the_end=True)
    words = last_words(attempt) if new in FAILURES else ""
    with transaction.atomic():
        job, attempt = lock_attempt(attempt)
        if next_state(attempt.state, observed.state) is not None:
            _end(job, attempt, observed, words)


def _move_on(job: Job, attempt: JobAttempt, observed: ObservedJob, new: JobState | None) -> None:
    is_latest = attempt.number == job.attempt_count and attempt.state not in FINAL
    if new is not None:
        attempt.state = new
        attempt.save(update_fields=["state"])
        if attempt.task_index is None:  # ten thousand tasks would bury what happened to the job
            event(job, f"state.{new}", _sentence(new, observed), attempt=attempt, at=observed.started_at)
        if new == JobState.RUNNING and observed.started_at is not None:
            open_accelerator_uses(job.cluster, attempt.key, observed.accelerators, observed.started_at)
    if not is_latest or attempt.task_index is not None:
        return
    if new is not None:
        job.state = new
    job.reason, job.is_held = observed.reason[:1000], observed.held
    job.started_at = job.started_at or observed.started_at
    job.expected_start_at = observed.expected_start_at
    job.save(update_fields=["state", "reason", "is_held", "started_at", "expected_start_at", "updated_at"])


def _sentence(state: JobState, observed: ObservedJob) -> str:
    if state == JobState.RUNNING and observed.nodes:
        count = len(observed.nodes)
        return f"running on {observed.nodes[0]}" + (f" and {count - 1} more" if count > 1 else "")
    return observed.reason or state.replace("_", " ")


def _end(job: Job, attempt: JobAttempt, observed: ObservedJob, words: str) -> None:
    if attempt.state == JobState.LOST:  # accounting knows better by now; the hours stay as they were settled
        attempt.state, attempt.reason = observed.state, observed.reason[:1000]
        attempt.save(update_fields=["state", "reason"])
        if attempt.number == job.attempt_count and job.state == JobState.LOST:
            job.state, job.reason = observed.state, observed.reason[:1000]
            job.save(update_fields=["state", "reason", "updated_at"])
        event(job, "corrected", f"was lost, is {observed.state.replace('_', ' ')}", attempt=attempt)
        return
    job.started_at = job.started_at or observed.started_at
    # A scheduler that keeps no reason for a cancel only says that there was one.
    asked = job.wanted_reason if job.wanted == Wanted.CANCEL and observed.state == JobState.CANCELLED else ""
    ending = Ending(
        state=observed.state,
        reason=asked if observed.reason in {"", "cancelled"} and asked else observed.reason,
        ended_at=observed.ended_at or timezone.now(),
        started_at=observed.started_at,
        exit_code=observed.exit_code,
        exit_signal=observed.exit_signal,
        last_words=words,
    )
    if observed.started_at is not None and attempt.state in {JobState.PENDING, JobState.DISPATCHING, JobState.UNKNOWN}:
        # It started and ended between two looks.
        if attempt.task_index is None:
            event(job, "state.running", _sentence(JobState.RUNNING, observed), attempt=attempt, at=observed.started_at)
        open_accelerator_uses(job.cluster, attempt.key, observed.accelerators, observed.started_at)
    end_attempt(job, attempt, ending)

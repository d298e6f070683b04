"""From what a scheduler says of its jobs to our rows. Rows and events change only when something did."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from django.db import transaction
from django.utils import timezone

from apps.core.install import install_id
from apps.inventory.actions import open_accelerator_uses
from apps.inventory.models import Cluster
from apps.jobs.ending import Ending, end_attempt, event
from apps.jobs.ingest import ingest_metrics, last_words
from apps.jobs.locks import lock_attempt
from apps.jobs.models import Job, JobAttempt
from apps.jobs.schedulers.base import ObservedJob, Scheduler
from apps.jobs.states import FAILURES, FINAL, JobState, next_state

log = logging.getLogger(__name__)


def observe_jobs(cluster: Cluster, scheduler: Scheduler, observed_jobs: Sequence[ObservedJob]) -> None:
    """Bring the rows of these jobs up to what the scheduler says; adopt jobs that were not born here."""
    known = _known_attempts(cluster, observed_jobs)
    for observed in observed_jobs:
        attempt = known.get(observed.external_id)
        if attempt is None or not _is_same(attempt, observed):
            _meet_stranger(cluster, scheduler, observed)
        elif _differs(attempt, observed):
            _apply(attempt, observed)


def observe_attempt(attempt: JobAttempt, scheduler: Scheduler) -> None:
    """Look at one job now, so that a person who just did something sees it at once."""
    observe_jobs(attempt.cluster, scheduler, scheduler.jobs([str(attempt.external_id)]))


def _known_attempts(cluster: Cluster, observed_jobs: Iterable[ObservedJob]) -> dict[str, JobAttempt]:
    ids = [observed.external_id for observed in observed_jobs]
    rows = JobAttempt.objects.filter(cluster=cluster, external_id__in=ids).select_related("job").order_by("id")
    return {str(attempt.external_id): attempt for attempt in rows}


def _is_same(attempt: JobAttempt, observed: ObservedJob) -> bool:
    """Whether the id still means what it meant: a scheduler that lost its memory counts from 1 again."""
    if observed.token is None and attempt.token.startswith("sw-"):
        return True  # an old record may have lost the token; the id is all there is
    return attempt.token in {observed.token, _adopted_token(attempt.cluster_id, observed)}


def _differs(attempt: JobAttempt, observed: ObservedJob) -> bool:
    if next_state(attempt.state, observed.state) is not None or attempt.missing_since is not None:
        return True
    if attempt.state in FINAL:
        return False
    job = attempt.job
    return (job.is_held, job.reason) != (observed.held, observed.reason[:1000]) or any(
        getattr(attempt, name) != value for name, value in _facts(observed).items()
    )


def _facts(observed: ObservedJob) -> dict[str, object]:
    return {
        "started_at": observed.started_at,
        "nodes": list(observed.nodes),
        "reason": observed.reason[:1000],
        "restart_count": observed.restart_count,
        "folder": observed.folder or "",
        "stdout_path": observed.stdout_path or "",
        "stderr_path": observed.stderr_path or "",
        "metrics_path": observed.metrics_path or "",
    }


def _apply(attempt: JobAttempt, observed: ObservedJob) -> None:
    is_last_look = observed.state in FINAL
    with transaction.atomic():
        job, attempt = lock_attempt(attempt)
        new = next_state(attempt.state, observed.state)
        if attempt.state not in FINAL:
            for name, value in _facts(observed).items():
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
        event(job, f"state.{new}", _sentence(new, observed), attempt=attempt, at=observed.started_at)
        if new == JobState.RUNNING and observed.started_at is not None:
            open_accelerator_uses(job.cluster, attempt.key, observed.accelerators, observed.started_at)
    if not is_latest:
        return
    if new is not None:
        job.state = new
    job.reason, job.is_held = observed.reason[:1000], observed.held
    job.started_at = job.started_at or observed.started_at
    job.save(update_fields=["state", "reason", "is_held", "started_at", "updated_at"])


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
    ending = Ending(
        state=observed.state,
        reason=observed.reason,
        ended_at=observed.ended_at or timezone.now(),
        started_at=observed.started_at,
        exit_code=observed.exit_code,
        exit_signal=observed.exit_signal,
        last_words=words,
    )
    if observed.started_at is not None and attempt.state in {JobState.PENDING, JobState.DISPATCHING, JobState.UNKNOWN}:
        # It started and ended between two looks.
        event(job, "state.running", _sentence(JobState.RUNNING, observed), attempt=attempt, at=observed.started_at)
        open_accelerator_uses(job.cluster, attempt.key, observed.accelerators, observed.started_at)
    end_attempt(job, attempt, ending)


def _meet_stranger(cluster: Cluster, scheduler: Scheduler, observed: ObservedJob) -> None:
    """A job the rows do not know: a copy of ours that must never start, or one that was born elsewhere."""
    if observed.token is not None and observed.token.startswith(f"sw-{install_id()}-"):
        attempt = JobAttempt.objects.filter(token=observed.token).first()
        # Its dispatch is under way or will be recovered, or has just written the id, after this poll read the rows.
        if attempt is not None and attempt.external_id in (None, observed.external_id):
            return
        # The row of a try is committed before the scheduler is asked, so without one, or beside one, it is a stray.
        if observed.held and observed.state not in FINAL:
            log.error("%s: ending stray job %s (%s)", cluster, observed.external_id, observed.token)
            scheduler.cancel(observed.external_id, "a job of this Switchyard that no row knows")
            return
        # What never started need not be shown; what ran without a row (a restored database) must be.
        if attempt is not None or (observed.state in FINAL and observed.started_at is None):
            return
    _adopt(cluster, observed)


def _adopted_token(cluster_pk: int, observed: ObservedJob) -> str:
    born = observed.submitted_at.isoformat() if observed.submitted_at else "unknown"
    return f"adopted-{cluster_pk}-{observed.external_id}-{born}"[:100]


def _adopt(cluster: Cluster, observed: ObservedJob) -> None:
    token = _adopted_token(cluster.pk, observed)
    if JobAttempt.objects.filter(token=token).exists():
        return
    with transaction.atomic():
        job = Job.objects.create(
            cluster=cluster,
            name=observed.name[:200] or observed.external_id,
            unix_user=observed.unix_user or "",
            account_name=observed.account or "",
            partition=observed.partition or "",
            nodes=max(1, len(observed.nodes)),
            state=JobState.PENDING,
            is_held=observed.held,
            external_id=observed.external_id,
            attempt_count=1,
        )
        attempt = JobAttempt.objects.create(
            job=job,
            cluster=cluster,
            number=1,
            token=token,
            external_id=observed.external_id,
            state=JobState.PENDING,
            submitted_at=observed.submitted_at,
            released_at=timezone.now(),
        )
        event(job, "adopted", f"found at {cluster}; it was not submitted here", attempt=attempt)
    _apply(attempt, observed)

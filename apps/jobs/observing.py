"""From what a scheduler says of its jobs to our rows: those that were born here, and those that were not."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from django.db import transaction
from django.utils import timezone

from apps.accounts.actions import reserve_what_is_left
from apps.core.install import install_id
from apps.inventory.models import Cluster
from apps.jobs.applying import apply, differs
from apps.jobs.arrays import observe_part
from apps.jobs.ending import event
from apps.jobs.identity import adopted_token, adopted_values, base_token, is_same
from apps.jobs.locks import lock_attempt
from apps.jobs.models import Job, JobAttempt
from apps.jobs.schedulers.base import ObservedJob, Scheduler
from apps.jobs.spec import hours_for
from apps.jobs.states import FINAL, JobState

log = logging.getLogger(__name__)


def observe_jobs(cluster: Cluster, scheduler: Scheduler, observed_jobs: Sequence[ObservedJob]) -> None:
    """Bring the rows of these jobs up to what the scheduler says; adopt jobs that were not born here."""
    known = _known_attempts(cluster, observed_jobs)
    for observed in _latest_run_first(observed_jobs, known):
        if observed.array is not None:
            observe_part(cluster, observed)
            continue
        attempts = known.get(observed.external_id, [])
        same = [attempt for attempt in attempts if is_same(attempt, observed)]
        if not same:
            _meet_stranger(cluster, scheduler, observed)
            _miss([attempt for attempt in attempts if not attempt.is_final])
            known[observed.external_id] = _known_attempts(cluster, [observed]).get(observed.external_id, [])
            continue
        attempt = next((one for one in same if one.restart_count == observed.restart_count), None)
        if attempt is None and observed.restart_count > max(one.restart_count for one in same):
            attempt = start_anew(same[-1], observed)
            known[observed.external_id] = [*attempts, attempt]
        if attempt is not None and differs(attempt, observed):
            apply(attempt, observed)


def observe_attempt(attempt: JobAttempt, scheduler: Scheduler) -> None:
    """Look at one job now, so that a person who just did something sees it at once."""
    observe_jobs(attempt.cluster, scheduler, scheduler.jobs([str(attempt.external_id)]))


def _known_attempts(cluster: Cluster, observed_jobs: Iterable[ObservedJob]) -> dict[str, list[JobAttempt]]:
    ids = {observed.external_id for observed in observed_jobs if observed.array is None}
    rows = JobAttempt.objects.filter(cluster=cluster, external_id__in=ids).select_related("job").order_by("id")
    found: dict[str, list[JobAttempt]] = defaultdict(list)
    for attempt in rows:
        found[str(attempt.external_id)].append(attempt)
    return found


def _latest_run_first(observed_jobs: Sequence[ObservedJob], known: Mapping[str, object]) -> list[ObservedJob]:
    """The end of an earlier run is told after the run that followed it, or the job would be taken to have ended.

    A job nobody knew yet is told from its beginning.
    """
    runs: dict[str, list[ObservedJob]] = defaultdict(list)
    for observed in observed_jobs:
        runs[observed.external_id].append(observed)
    return [
        observed
        for external_id, of_one in runs.items()
        for observed in sorted(of_one, key=lambda o: o.restart_count, reverse=external_id in known)
    ]


def _miss(attempts: Sequence[JobAttempt]) -> None:
    """Another job or another run has their id now: how they ended is looked up, and lost if nobody knows."""
    pks = [attempt.pk for attempt in attempts]
    JobAttempt.objects.filter(pk__in=pks, missing_since__isnull=True).update(missing_since=timezone.now())


def start_anew(last: JobAttempt, observed: ObservedJob) -> JobAttempt:
    """The scheduler has requeued the job: the same id, a try of its own. Idempotent."""
    with transaction.atomic():
        job, last = lock_attempt(last)
        token = f"{base_token(last.token)}~{observed.restart_count}"
        there = JobAttempt.objects.filter(token=token).select_related("job").first()
        if there is not None:
            return there
        attempt = JobAttempt.objects.create(
            job=job,
            cluster=last.cluster,
            number=job.attempt_count + 1,
            token=token,
            external_id=observed.external_id,
            restart_count=observed.restart_count,
            state=JobState.PENDING,
            submitted_at=observed.submitted_at,
            released_at=timezone.now(),
        )
        job.attempt_count, job.state, job.reason = attempt.number, JobState.PENDING, observed.reason[:1000]
        job.started_at = job.ended_at = job.exit_code = job.exit_signal = job.progress = None
        job.progress_text = ""
        job.save()
        if job.project is not None:
            gpu_hours, cpu_hours = hours_for(job, job.time_limit_s or 0)
            reserve_what_is_left(job.project, attempt.key, gpu_hours=gpu_hours, cpu_hours=cpu_hours)
        event(job, "requeued", f"{job.cluster} starts it anew (run {observed.restart_count + 1})", attempt=attempt)
        # How the run before it ended stands in the accounting, some seconds later.
        _miss([run for run in JobAttempt.objects.filter(job=job, number__lt=attempt.number) if not run.is_final])
        return attempt


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


def _adopt(cluster: Cluster, observed: ObservedJob) -> None:
    token = adopted_token(cluster.pk, observed.external_id, observed.submitted_at)
    if JobAttempt.objects.filter(token=token).exists():
        return
    with transaction.atomic():
        job = Job.objects.create(**adopted_values(cluster, observed), external_id=observed.external_id)
        attempt = JobAttempt.objects.create(
            job=job,
            cluster=cluster,
            number=1,
            token=token,
            external_id=observed.external_id,
            restart_count=observed.restart_count,
            state=JobState.PENDING,
            submitted_at=observed.submitted_at,
            released_at=timezone.now(),
        )
        event(job, "adopted", f"found at {cluster}; it was not submitted here", attempt=attempt)
    apply(attempt, observed)

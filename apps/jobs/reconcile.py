"""The polls: what changed at each scheduler, what its nodes do, and which rows nobody has looked after."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.contrib.sessions.models import Session
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from apps.core.wake import wake
from apps.inventory.actions import record_cluster_view, record_poll_failure, record_poll_success
from apps.inventory.models import Cluster, Node, WantedOfNode
from apps.jobs.arrays import bring_up_to_date
from apps.jobs.dispatch import due_for_recovery
from apps.jobs.ending import Ending, end_attempt
from apps.jobs.ingest import ingest_metrics
from apps.jobs.locks import lock_attempt
from apps.jobs.models import Job, JobAttempt, SubmissionKey, Wanted
from apps.jobs.observing import observe_jobs
from apps.jobs.schedulers.base import Changes, Scheduler
from apps.jobs.schedulers.registry import scheduler_for
from apps.jobs.states import ACTIVE, FINAL, JobState

log = logging.getLogger(__name__)

# A job the scheduler no longer lists may only be late in a list; a minute later it is gone.
LOST_AFTER_S = 60
# The accounting tells how a job ended some seconds after the controller has forgotten it.
ASK_AFTER_S = 5
ASK_AT_MOST = 20
# A wake that came through has been carried out by then.
WAKE_WAIT_S = 5
BATCH = 500
KEEP_KEYS_DAYS = 7


def reconcile_cluster(cluster_pk: int, *, full: bool = False) -> None:
    """One poll. Two at once would only do the same work twice, so the second returns at once."""
    with alone("reconcile", cluster_pk) as mine:
        cluster = Cluster.objects.filter(pk=cluster_pk, is_enabled=True).first() if mine else None
        if cluster is None:
            return
        started = time.monotonic()
        try:
            scheduler = scheduler_for(cluster.scheduler, cluster.config)
            changes = scheduler.changes(None if full else cluster.poll_cursor or None)
            observe_jobs(cluster, scheduler, changes.jobs)
            _note_missing(cluster, changes)
            _lose_missing(cluster, scheduler)
        except Exception as error:  # whatever an outside system does to us, the last good state stays, marked stale
            log.warning("poll of %s failed: %s", cluster, error, exc_info=not isinstance(error, OSError))
            record_poll_failure(cluster, error=_sentence(error), duration_ms=_ms_since(started))
            return
        record_poll_success(cluster, cursor=changes.cursor, duration_ms=_ms_since(started))
        for attempt_pk in JobAttempt.objects.filter(cluster=cluster, state__in=ACTIVE).values_list("pk", flat=True):
            ingest_metrics(attempt_pk)


def poll_nodes(cluster_pk: int) -> bool:
    """Nodes, partitions and accelerators as the scheduler sees them; False when nothing was looked at."""
    with alone("nodes", cluster_pk) as mine:
        cluster = Cluster.objects.filter(pk=cluster_pk, is_enabled=True).first() if mine else None
        if cluster is None:
            return False
        started = time.monotonic()
        try:
            view = scheduler_for(cluster.scheduler, cluster.config).nodes()
        except Exception as error:  # as above
            log.warning("node poll of %s failed: %s", cluster, error)
            record_poll_failure(cluster, error=_sentence(error), duration_ms=_ms_since(started))
            return False
        record_cluster_view(cluster, view)
        return True


def wake_polls(task_name: str, expires_s: int) -> None:
    """One task a cluster, on the cluster's own queue."""
    for cluster in Cluster.objects.filter(is_enabled=True):
        wake(task_name, cluster.pk, queue=cluster.queue, expires_s=expires_s)


def wake_forgotten(expires_s: int) -> None:
    """Start what a lost wake or a dead worker has left: queued jobs, open claims, wishes not carried out."""
    now = timezone.now()
    before = now - timedelta(seconds=WAKE_WAIT_S)
    waiting = (
        Job.objects.filter(state=JobState.QUEUED, is_held=False, wanted=Wanted.NOTHING, updated_at__lt=before)
        .exclude(not_before__gt=now)
        .order_by("id")
        .values_list("pk", "cluster__name")[:BATCH]
    )
    by_cluster: dict[str, list[int]] = defaultdict(list)
    for pk, name in waiting:
        by_cluster[name].append(pk)
    for name, pks in by_cluster.items():
        wake("jobs.dispatch", *pks, queue=f"cluster.{name}", expires_s=expires_s)
    for pk, name in due_for_recovery(now, BATCH):
        wake("jobs.recover_attempt", pk, queue=f"cluster.{name}", expires_s=expires_s)
    wishes = Job.objects.exclude(wanted=Wanted.NOTHING).filter(updated_at__lt=before).order_by("updated_at")
    for pk, name in wishes.values_list("pk", "cluster__name")[:BATCH]:
        wake("jobs.carry_out", pk, queue=f"cluster.{name}", expires_s=expires_s)
    wanting = Node.objects.exclude(wanted=WantedOfNode.NOTHING).filter(wanted_at__lt=before, retired_at__isnull=True)
    for pk, name in Cluster.objects.filter(is_enabled=True, nodes__in=wanting).distinct().values_list("pk", "name"):
        wake("jobs.carry_out_nodes", pk, queue=f"cluster.{name}", expires_s=expires_s)


def tidy() -> None:
    """Drop what is no longer needed, and take one whole look at each scheduler for strays."""
    SubmissionKey.objects.filter(created_at__lt=timezone.now() - timedelta(days=KEEP_KEYS_DAYS)).delete()
    Session.objects.filter(expire_date__lt=timezone.now()).delete()
    wake_polls("jobs.reconcile_fully", expires_s=600)


@contextmanager
def alone(what: str, cluster_pk: int) -> Iterator[bool]:
    """Hold this poll's advisory lock; yields False when somebody else has it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(hashtext(%s), %s)", [f"switchyard.{what}", cluster_pk])
        mine = bool(cursor.fetchone()[0])
    try:
        yield mine
    finally:
        if mine:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(hashtext(%s), %s)", [f"switchyard.{what}", cluster_pk])


def _note_missing(cluster: Cluster, changes: Changes) -> None:
    there = _open_attempts(cluster).filter(missing_since__isnull=True)
    if changes.complete:
        listed = {observed.external_id for observed in changes.jobs}
        gone = [pk for pk, external_id in there.values_list("pk", "external_id") if external_id not in listed]
        JobAttempt.objects.filter(pk__in=gone).update(missing_since=timezone.now())
    elif changes.gone:
        there.filter(external_id__in=changes.gone).update(missing_since=timezone.now())


def _lose_missing(cluster: Cluster, scheduler: Scheduler) -> None:
    """Ask again for what is missing, and of what has been missing long enough say that its end is not known."""
    now = timezone.now()
    since, asked_since = now - timedelta(seconds=LOST_AFTER_S), now - timedelta(seconds=ASK_AFTER_S)
    missing = list(_open_attempts(cluster).filter(missing_since__lt=since)[:BATCH])
    late = _open_attempts(cluster).filter(missing_since__gte=since, missing_since__lt=asked_since)
    missing += late.order_by("missing_since")[:ASK_AT_MOST]
    if not missing:
        return
    observe_jobs(cluster, scheduler, scheduler.jobs([str(attempt.external_id) for attempt in missing]))
    # One that was found, as itself and not as another job with its id, is missing no more.
    for attempt in _open_attempts(cluster).filter(pk__in=[a.pk for a in missing], missing_since__lt=since):
        _lose(attempt)
        if attempt.task_index is not None:
            bring_up_to_date(attempt.job_id)


@transaction.atomic
def _lose(attempt: JobAttempt) -> None:
    job, locked = lock_attempt(attempt)
    if locked.state in FINAL:
        return
    reason = f"{job.cluster} no longer knows it, so how it ended is not known"
    ended_at = locked.missing_since or timezone.now()
    end_attempt(job, locked, Ending(JobState.LOST, reason, ended_at, started_at=locked.started_at))


def _open_attempts(cluster: Cluster) -> QuerySet[JobAttempt]:
    """Those that must be in the scheduler's list. An array that has started all its tasks is there as its tasks."""
    return JobAttempt.objects.filter(
        cluster=cluster, external_id__isnull=False, state__in=[s.value for s in JobState if s not in FINAL]
    ).exclude(job__is_array=True, task_index__isnull=True, job__waiting_task_count=0)


def _sentence(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:1000]


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)

"""Arrays: one job for all its tasks. A started task is an attempt with an index; the others are a range on the job.

The first attempt, without an index, stands for the array itself: it is what was submitted, and it ends with the array.
"""

from __future__ import annotations

from collections import Counter

from django.db import transaction
from django.utils import timezone

from apps.inventory.models import Cluster
from apps.jobs.applying import apply, differs
from apps.jobs.ending import Ending, end_attempt, event
from apps.jobs.identity import adopted_token, adopted_values, base_token, is_same
from apps.jobs.locks import lock_job
from apps.jobs.models import Job, JobAttempt
from apps.jobs.schedulers.base import ArrayPart, ObservedJob
from apps.jobs.states import ACTIVE, FAILURES, FINAL, JobState


def observe_part(cluster: Cluster, observed: ObservedJob) -> None:
    """A task of an array, or what of it still waits."""
    part = observed.array
    assert part is not None
    leader = _leader(cluster, part, observed)
    if part.task_index is None:
        _note_waiting(leader, part, observed)
    else:
        task = _task(leader, part.task_index, observed)
        if differs(task, observed):
            apply(task, observed)
    bring_up_to_date(leader.job_id)


def _leader(cluster: Cluster, part: ArrayPart, observed: ObservedJob) -> JobAttempt:
    """The array's own attempt; made for an array that was born elsewhere."""
    known = JobAttempt.objects.filter(
        cluster=cluster, external_id=part.array_id, task_index__isnull=True
    ).select_related("job", "cluster")
    for attempt in known.order_by("-id"):
        if is_same(attempt, observed):
            return attempt
    token = adopted_token(cluster.pk, part.array_id, observed.submitted_at)
    with transaction.atomic():
        values = adopted_values(cluster, observed)
        job = Job.objects.create(**values, external_id=part.array_id, is_array=True)
        leader = JobAttempt.objects.create(
            job=job,
            cluster=cluster,
            number=1,
            token=token,
            external_id=part.array_id,
            state=JobState.PENDING,
            submitted_at=observed.submitted_at,
            released_at=timezone.now(),
        )
        event(job, "adopted", f"found at {cluster}; it was not submitted here", attempt=leader)
    return leader


def _note_waiting(leader: JobAttempt, part: ArrayPart, observed: ObservedJob) -> None:
    with transaction.atomic():
        job = lock_job(leader.job_id)
        waiting = part.pending if observed.state not in FINAL else ()
        text = folded(waiting)
        told = (text, len(waiting), part.at_most, observed.held, observed.reason[:1000])
        if (job.waiting_tasks, job.waiting_task_count, job.tasks_at_most, job.is_held, job.reason) == told:
            return
        job.is_array = True
        job.waiting_tasks, job.waiting_task_count, job.tasks_at_most, job.is_held, job.reason = told
        job.save()


def _task(leader: JobAttempt, index: int, observed: ObservedJob) -> JobAttempt:
    """The attempt of this run of the task, made at its first sight."""
    token = f"{base_token(leader.token)}~{observed.restart_count}_{index}"
    found = JobAttempt.objects.filter(token=token).select_related("job", "cluster").first()
    if found is not None:
        return found
    with transaction.atomic():
        job = lock_job(leader.job_id)
        task, _ = JobAttempt.objects.get_or_create(
            token=token,
            defaults={
                "job": job,
                "cluster": leader.cluster,
                "number": observed.restart_count + 1,
                "task_index": index,
                "external_id": observed.external_id,
                "restart_count": observed.restart_count,
                "state": JobState.PENDING,
                "submitted_at": observed.submitted_at,
                "released_at": timezone.now(),
            },
        )
        job.is_array = True
        if observed.external_id == leader.external_id:  # the last task to start takes the array's own id
            job.waiting_tasks, job.waiting_task_count = "", 0
        job.save(update_fields=["is_array", "waiting_tasks", "waiting_task_count", "updated_at"])
        _end_earlier_runs(job, task, observed)
    return task


def _end_earlier_runs(job: Job, task: JobAttempt, observed: ObservedJob) -> None:
    earlier = JobAttempt.objects.filter(job=job, task_index=task.task_index, number__lt=task.number)
    for run in earlier.select_related("cluster"):
        if not run.is_final:
            run.job = job
            # Right after a requeue the scheduler may still tell the time of the first submission.
            is_told = observed.submitted_at is not None and observed.submitted_at >= (run.started_at or timezone.now())
            ended_at = observed.submitted_at if is_told else timezone.now()
            reason = "the scheduler put it back into the queue; how this run ended is not known"
            end_attempt(job, run, Ending(JobState.LOST, reason, ended_at, started_at=run.started_at))


@transaction.atomic
def bring_up_to_date(job_pk: int) -> None:
    """The array's own state, from its tasks' states and what still waits."""
    job = lock_job(job_pk)
    if job.state in FINAL and job.waiting_task_count == 0:
        return
    states = task_states(job)
    is_open = job.waiting_task_count or any(state not in FINAL for state in states)
    leader = JobAttempt.objects.select_related("cluster").get(job=job, task_index__isnull=True)
    if not states and not job.waiting_task_count:
        return
    if is_open:
        state = JobState.RUNNING if any(state in ACTIVE for state in states) else JobState.PENDING
        if job.state != state:
            job.state, job.started_at = state, job.started_at or (timezone.now() if state in ACTIVE else None)
            job.save(update_fields=["state", "started_at", "updated_at"])
            JobAttempt.objects.filter(pk=leader.pk).update(state=state)
            event(job, f"state.{state}", f"{sum(states.values()):,} tasks started", attempt=leader)
        return
    leader.job = job
    state, reason = verdict(states)
    ended = JobAttempt.objects.filter(job=job, task_index__isnull=False).exclude(ended_at=None)
    last = ended.order_by("-ended_at").values_list("ended_at", flat=True).first()
    end_attempt(job, leader, Ending(state, reason, last or timezone.now()))


def task_states(job: Job) -> Counter[JobState]:
    """How many of the tasks that have started are in which state, each by its latest run."""
    latest = JobAttempt.objects.filter(job=job, task_index__isnull=False).order_by("task_index", "-number")
    return Counter(JobState(state) for state in latest.distinct("task_index").values_list("state", flat=True))


def verdict(states: Counter[JobState]) -> tuple[JobState, str]:
    """How an array ended whose tasks ended so."""
    total = sum(states.values())
    failed = sum(count for state, count in states.items() if state in FAILURES)
    if failed:
        return JobState.FAILED, f"{failed:,} of {total:,} tasks failed"
    if states[JobState.CANCELLED]:
        return JobState.CANCELLED, f"{states[JobState.CANCELLED]:,} of {total:,} tasks were cancelled"
    return JobState.COMPLETED, f"all {total:,} tasks completed"


def folded(indices: tuple[int, ...]) -> str:
    """1, 2, 3, 7 as `1-3,7`."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)

"""A job from its submit to its end, over the real local scheduler."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from django.utils import timezone

from apps.accounts.models import Allocation, AllocationEntry, Notice
from apps.jobs.actions import cancel_job, hold_job, release_job
from apps.jobs.carry_out import carry_out_wish
from apps.jobs.dispatch import dispatch_jobs, recover_attempt
from apps.jobs.models import Checkpoint, Job, JobAttempt, MetricSeries
from apps.jobs.reconcile import poll_nodes, reconcile_cluster
from apps.jobs.states import JobState
from tests.jobs.helpers import follow, submit
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

METRICS = """
echo '{"step": 1, "name": "loss", "value": 4.5}' >> "$SWITCHYARD_METRICS"
echo '{"step": 2, "name": "loss", "value": 2.5}' >> "$SWITCHYARD_METRICS"
echo '{"event": "checkpoint", "path": "c.npz", "step": 2}' >> "$SWITCHYARD_METRICS"
printf '{"event": "progress", "share": 0.5, "text": "half"}' >> "$SWITCHYARD_METRICS"
"""


def cpu_allocation(cast) -> Allocation:
    return Allocation.objects.get(project=cast.project, unit="cpu_hours")


def test_a_job_runs_to_its_end_and_is_paid_for(cast):
    job = submit(cast, METRICS, cpus_per_node=2)
    assert job.state == JobState.QUEUED
    assert cpu_allocation(cast).reserved == Decimal("2.000000")  # 2 CPUs x 1 h
    follow(job)
    assert (job.state, job.exit_code) == (JobState.COMPLETED, 0)
    attempt = job.attempts.get()
    seconds = Decimal(str((attempt.ended_at - attempt.started_at).total_seconds()))
    assert job.cpu_hours == (seconds * 2 / 3600).quantize(Decimal("0.000001"))
    allocation = cpu_allocation(cast)
    assert (allocation.reserved, allocation.spent) == (Decimal(0), job.cpu_hours)
    kinds = list(AllocationEntry.objects.filter(ref=attempt.key).values_list("kind", flat=True).order_by("id"))
    assert kinds == ["reserve", "release", "spend"]
    series = MetricSeries.objects.get(attempt=attempt, name="loss")
    assert (series.count, series.last_step, series.last_value) == (2, 2, 2.5)
    assert Checkpoint.objects.get(job=job).path == "c.npz"
    assert (job.progress, job.progress_text) == (0.5, "half")  # the last line had no end
    events = list(job.events.order_by("id").values_list("kind", flat=True))
    assert [e for e in events if e.startswith("state")] == ["state.pending", "state.running", "state.completed"]
    assert Notice.objects.get(user=cast.mina).text == "a job: completed"


def test_why_a_job_failed_is_kept_in_one_line(cast):
    job = follow(submit(cast, "echo working; echo 'no such file: data.bin' >&2; exit 3"))
    attempt = job.attempts.get()
    assert (job.state, job.exit_code, attempt.last_words) == (JobState.FAILED, 3, "no such file: data.bin")


def test_a_job_that_is_cancelled_while_it_runs(cast):
    job = submit(cast, "sleep 60")
    dispatch_jobs([job.pk])
    wait_until(lambda: Job.objects.get(pk=job.pk, attempts__state="running") if reconcile(cast, job) else None)
    cancel_job(job, by=cast.mina, reason="wrong data")
    job.refresh_from_db()
    assert (job.state, job.wanted) == (JobState.RUNNING, "cancel")
    carry_out_wish(job.pk)
    follow(job)
    assert (job.state, job.wanted) == (JobState.CANCELLED, "")
    assert "cancelled: by mina: wrong data" in job.reason
    assert cpu_allocation(cast).reserved == 0


def reconcile(cast, job) -> bool:
    reconcile_cluster(cast.cluster.pk)
    job.refresh_from_db()
    return job.state == JobState.RUNNING


def test_a_queued_job_is_cancelled_at_once_and_its_hours_come_back(cast):
    job = submit(cast)
    cancel_job(job, by=cast.olga)
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert cpu_allocation(cast).reserved == 0
    assert dispatch_jobs([job.pk]) == 0


def test_a_held_job_waits_in_its_row_until_it_is_released(cast):
    job = submit(cast, hold=True)
    assert dispatch_jobs([job.pk]) == 0
    release_job(job, by=cast.mina)
    assert follow(job).state == JobState.COMPLETED


def test_a_pending_job_is_held_at_the_scheduler_and_released_again(cast):
    blocker = submit(cast, "sleep 60", cpus_per_node=2)
    job = submit(cast, cpus_per_node=2)
    dispatch_jobs([blocker.pk, job.pk])
    hold_job(job, by=cast.mina)
    carry_out_wish(job.pk)
    job.refresh_from_db()
    assert (job.state, job.is_held, job.wanted) == (JobState.PENDING, True, "")
    release_job(job, by=cast.mina)
    carry_out_wish(job.pk)
    job.refresh_from_db()
    assert (job.is_held, job.wanted) == (False, "")
    cancel_job(blocker, by=cast.mina)
    carry_out_wish(blocker.pk)
    assert follow(job).state == JobState.COMPLETED


def test_a_failed_job_is_tried_again_and_each_try_is_paid(cast):
    job = submit(cast, "exit 1", max_retries=1)
    dispatch_jobs([job.pk])

    def is_waiting_again() -> bool:
        reconcile_cluster(cast.cluster.pk)
        job.refresh_from_db()
        return job.state == JobState.QUEUED

    wait_until(is_waiting_again)
    assert job.not_before > timezone.now()
    assert cpu_allocation(cast).reserved == Decimal(1)  # reserved anew
    Job.objects.filter(pk=job.pk).update(not_before=timezone.now() - timedelta(seconds=1))
    follow(job)
    assert (job.state, job.attempt_count) == (JobState.FAILED, 2)
    assert cpu_allocation(cast).reserved == 0
    refs = set(AllocationEntry.objects.values_list("ref", flat=True))
    assert refs == {f"{job.public_id}:1", f"{job.public_id}:2"}


def test_what_the_scheduler_refuses_fails_with_its_words(cast):
    cast.cluster.partitions.update(max_cpus_per_node=None)
    job = submit(cast, cpus_per_node=3, max_retries=3)
    dispatch_jobs([job.pk])
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert job.attempt_count == 1
    assert "3 CPUs asked for, this machine has 2" in job.reason
    assert cpu_allocation(cast).reserved == 0


def test_the_cluster_reports_its_node(cast):
    poll_nodes(cast.cluster.pk)
    node = cast.cluster.nodes.get()
    assert (node.name, node.state, node.cpus) == ("node-1", "idle", 2)
    poll_nodes(cast.cluster.pk)
    assert node.state_changes.count() == 1


def test_a_cluster_that_is_switched_off_is_given_nothing_until_it_is_on_again(cast):
    job = submit(cast)
    cast.cluster.is_enabled = False
    cast.cluster.save()
    assert dispatch_jobs([job.pk]) == 0
    cast.cluster.is_enabled = True
    cast.cluster.save()
    assert follow(job).state == JobState.COMPLETED


def test_a_cluster_that_is_set_up_wrongly_keeps_its_jobs_waiting_with_the_reason(cast):
    job = submit(cast)
    good = cast.cluster.config
    cast.cluster.config = {**good, "nonsense": 1}
    cast.cluster.save()
    dispatch_jobs([job.pk])
    job.refresh_from_db()
    assert job.state == JobState.DISPATCHING
    assert "nonsense" in job.reason
    cast.cluster.config = good
    cast.cluster.save()
    JobAttempt.objects.update(claimed_until=timezone.now() - timedelta(seconds=1))
    recover_attempt(job.attempts.get().pk)
    assert follow(job).state == JobState.COMPLETED
    assert job.attempt_count == 1

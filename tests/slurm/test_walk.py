"""Jobs on a real Slurm, through the same door as everywhere: submitted, followed, controlled, found and adopted."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from apps.accounts.models import Allocation
from apps.inventory.models import Node
from apps.jobs.actions import cancel_job, hold_job, release_job
from apps.jobs.carry_out import carry_out_wish
from apps.jobs.dispatch import dispatch_jobs, due_for_recovery, recover_attempt
from apps.jobs.models import Job, JobAttempt, JobEvent
from apps.jobs.reconcile import reconcile_cluster
from apps.jobs.schedulers.registry import scheduler_for
from apps.jobs.states import FINAL, JobState
from tests.harness import BASE_DIR, test_environment
from tests.jobs.helpers import follow, submit
from tests.slurm.conftest import sbatch
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


STEPS = (
    *("after the claim", "before the submit", "during the submit", "after the submit", "after the record"),
    *("before the release", "after the release"),
)


def reach(job: Job, *states: JobState, timeout_s: float = 30) -> Job:
    def reached() -> bool:
        dispatch_jobs([job.pk])
        reconcile_cluster(job.cluster_id)
        job.refresh_from_db()
        assert job.state in states or job.state not in FINAL, (job.state, job.reason)
        return job.state in states

    wait_until(reached, timeout_s, every_s=0.2)
    return job


def test_a_job_runs_as_its_owner_on_two_nodes_with_its_gpus(slurm_cast, slurm_lab):
    script = 'id -un > "who-$SLURM_JOB_ID"; echo $CUDA_VISIBLE_DEVICES; echo $SWITCHYARD_JOB_NAME'
    job = submit(slurm_cast, script, name="two nodes", nodes=2, accelerators_per_node=4, cpus_per_node=2)
    follow(job)
    attempt = job.attempts.get()
    assert (job.state, job.exit_code, attempt.accelerators, attempt.cpus) == (JobState.COMPLETED, 0, 8, 4)
    assert len(attempt.nodes) == 2
    made = slurm_lab.jobs_dir / f"who-{job.external_id}"
    assert (made.owner(), made.read_text()) == ("alice", "alice\n")
    assert Path(attempt.stdout_path).read_text() == "0,1,2,3\ntwo nodes\n"
    seconds = Decimal((attempt.ended_at - attempt.started_at).total_seconds())
    assert job.gpu_hours == (seconds * 8 / 3600).quantize(Decimal("0.000001"))
    assert Allocation.objects.get(unit="gpu_hours").spent == job.gpu_hours
    assert Allocation.objects.get(unit="gpu_hours").reserved == 0


def test_nodes_partitions_and_their_limits_are_rows(slurm_cast):
    assert Node.objects.filter(cluster=slurm_cast.cluster, accelerator_count=8, cpus=96).count() == 16
    limits = slurm_cast.cluster.partitions.values_list(
        "name", "is_default", "max_time_s", "max_nodes_per_job", "max_cpus_per_node", "max_accelerators_per_node"
    )
    assert set(limits) == {
        ("train", True, 7 * 86400, 16, 96, 8),
        ("debug", False, 1800, 16, 96, 8),
        ("one", False, 86400, 1, 96, 8),
    }


def test_cancel_hold_and_release_in_the_owners_name(slurm_cast):
    job = reach(submit(slurm_cast, "sleep 60"), JobState.RUNNING)
    cancel_job(job, by=slurm_cast.olga, reason="the wrong data")
    carry_out_wish(job.pk)
    follow(job)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled by olga: the wrong data")

    blocker = submit(slurm_cast, "sleep 60", partition="one", cpus_per_node=96, memory_bytes_per_node=2**30)
    reach(blocker, JobState.RUNNING)
    waiting = submit(slurm_cast, "true", partition="one")
    reach(waiting, JobState.PENDING)
    assert not waiting.is_held
    hold_job(waiting, by=slurm_cast.mina)
    carry_out_wish(waiting.pk)
    waiting.refresh_from_db()
    assert waiting.is_held
    release_job(waiting, by=slurm_cast.mina)
    carry_out_wish(waiting.pk)
    cancel_job(blocker, by=slurm_cast.mina)
    carry_out_wish(blocker.pk)
    assert follow(waiting, 60).state == JobState.COMPLETED


def test_what_slurm_refuses_ends_as_failed_with_its_words(slurm_cast):
    job = follow(submit(slurm_cast, "true", qos="nonexistent"))
    assert job.state == JobState.FAILED
    assert "Invalid qos" in job.reason
    assert Allocation.objects.get(unit="cpu_hours").reserved == 0


def test_jobs_born_on_a_login_node_are_adopted_with_what_slurm_knows(slurm_cast, slurm_lab):
    slurm_id = sbatch(
        slurm_lab, "bob", "--job-name=it's mine", "-N2", "--gres=gpu:h100:2", "--time=90", script="sleep 1; exit 3"
    )
    reconcile_cluster(slurm_cast.cluster.pk)
    job = Job.objects.get(cluster=slurm_cast.cluster, external_id=slurm_id)
    assert (job.name, job.unix_user, job.account_name, job.submitted_by) == (
        "it's mine",
        "bob",
        "vision",
        slurm_cast.olga,
    )
    assert (job.nodes, job.accelerators_per_node, job.time_limit_s, job.project) == (2, 2, 5400, None)
    follow(job)
    assert (job.state, job.exit_code, job.attempts.get().accelerators) == (JobState.FAILED, 3, 4)
    assert JobEvent.objects.filter(job=job, kind="adopted").count() == 1


def test_a_requeued_job_is_one_job_with_two_attempts(slurm_cast, slurm_lab):
    script = 'echo run >> "runs-$SLURM_JOB_ID"; [ "${SLURM_RESTART_COUNT:-0}" = 0 ] && sleep 60; true'
    job = reach(submit(slurm_cast, script, accelerators_per_node=1), JobState.RUNNING)
    wait_until(lambda: (slurm_lab.jobs_dir / f"runs-{job.external_id}").exists())
    time.sleep(1.2)
    slurm_lab.run(["scontrol", "requeue", job.external_id])
    follow(job, 180)
    # The accounting tells how the first run ended, some seconds later.
    wait_until(lambda: reconcile_cluster(job.cluster_id) or job.attempts.get(number=1).is_final, timeout_s=30)
    job.refresh_from_db()
    first, second = job.attempts.order_by("number")
    assert (job.state, job.attempt_count) == (JobState.COMPLETED, 2)
    assert first.external_id == second.external_id
    assert (second.state, second.restart_count) == (JobState.COMPLETED, 1)
    assert (first.state, first.reason) == (JobState.CANCELLED, "put back into the queue")
    assert first.started_at < first.ended_at <= second.started_at
    assert (slurm_lab.jobs_dir / f"runs-{job.external_id}").read_text() == "run\nrun\n"
    seconds = sum(((a.ended_at - a.started_at) for a in (first, second)), timedelta()).total_seconds()
    assert Allocation.objects.get(unit="gpu_hours").spent == job.gpu_hours
    assert abs(job.gpu_hours - Decimal(seconds) / 3600) < Decimal("0.00001")
    assert Allocation.objects.get(unit="gpu_hours").reserved == 0


def test_an_array_is_one_job_whose_tasks_are_attempts(slurm_cast, slurm_lab):
    slurm_id = sbatch(slurm_lab, "alice", "--array=1-6%2", script="sleep 1; [ $SLURM_ARRAY_TASK_ID != 4 ]")
    reconcile_cluster(slurm_cast.cluster.pk)
    job = Job.objects.get(cluster=slurm_cast.cluster, external_id=slurm_id)
    assert (job.is_array, job.tasks_at_most) == (True, 2)
    assert job.waiting_task_count + job.attempts.filter(task_index__isnull=False).count() == 6
    follow(job, 120)
    assert (job.state, job.reason) == (JobState.FAILED, "1 of 6 tasks failed")
    tasks = job.attempts.filter(task_index__isnull=False).order_by("task_index")
    assert [t.task_index for t in tasks] == [1, 2, 3, 4, 5, 6]
    assert [t.state for t in tasks] == [JobState.FAILED if i == 4 else JobState.COMPLETED for i in range(1, 7)]
    assert Job.objects.filter(cluster=slurm_cast.cluster, name=job.name).count() == 1


@pytest.mark.faults
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_that_is_killed_at_any_step(slurm_cast, slurm_lab, step):
    job = submit(slurm_cast, 'echo ran >> "runs-$SWITCHYARD_JOB_PUBLIC_ID"')
    killed = subprocess.run(
        [sys.executable, "-m", "tests.faults.dying", step, str(job.pk), "slurm"], cwd=BASE_DIR, env=test_environment()
    )
    assert killed.returncode == -9
    JobAttempt.objects.update(claimed_until=timezone.now() - timedelta(seconds=1))
    for pk, _ in due_for_recovery(timezone.now(), 10):
        recover_attempt(pk)
    follow(job, 60)
    assert (job.state, job.attempts.count()) == (JobState.COMPLETED, 1)
    assert (slurm_lab.jobs_dir / f"runs-{job.public_id}").read_text() == "ran\n"
    listed = slurm_lab.run(["squeue", "-h", "-t", "all", "-o", "%k"]).split()
    assert listed.count(job.attempts.get().token) == 1


@pytest.mark.faults
def test_slurmctld_is_gone_when_a_job_is_submitted(slurm_cast, slurm_lab):
    slurm_lab.kill("slurmctld")
    try:
        job = submit(slurm_cast, 'echo ran >> "runs-$SWITCHYARD_JOB_PUBLIC_ID"')
        dispatch_jobs([job.pk])
        reconcile_cluster(slurm_cast.cluster.pk)
        job.refresh_from_db()
        slurm_cast.cluster.refresh_from_db()
        assert job.state in {JobState.DISPATCHING, JobState.UNKNOWN}
        assert slurm_cast.cluster.poll_error
    finally:
        slurm_lab.start_slurmctld()

    def ended() -> bool:
        JobAttempt.objects.filter(job=job).update(
            claimed_until=timezone.now() - timedelta(seconds=1), missing_since=timezone.now() - timedelta(seconds=11)
        )
        for pk, _ in due_for_recovery(timezone.now(), 10):
            recover_attempt(pk)
        reconcile_cluster(job.cluster_id)
        job.refresh_from_db()
        return job.state in FINAL

    wait_until(ended, 60, every_s=0.5)
    assert (job.state, job.attempts.count()) == (JobState.COMPLETED, 1)
    assert (slurm_lab.jobs_dir / f"runs-{job.public_id}").read_text() == "ran\n"


@pytest.mark.faults
def test_a_controller_that_lost_its_jobs_has_their_ends_told_by_the_accounting(slurm_cast, slurm_lab):
    done = reach(submit(slurm_cast, "sleep 3; exit 5", name="five"), JobState.RUNNING)
    wait_until(lambda: "FAILED" in slurm_lab.run(["sacct", "-n", "-X", "-j", done.external_id, "-o", "state"]), 30)
    slurm_lab.stop("slurmctld")
    slurm_lab.run(["slurmctld", "-c"])  # as after a wipe of its state: it knows no job
    wait_until(lambda: slurm_lab.try_run(["sinfo", "-h"]).returncode == 0, 30)
    reconcile_cluster(slurm_cast.cluster.pk)
    done.refresh_from_db()
    if done.state not in FINAL:
        JobAttempt.objects.update(missing_since=timezone.now() - timedelta(seconds=61))
        reconcile_cluster(slurm_cast.cluster.pk)
        done.refresh_from_db()
    assert done.state == JobState.FAILED
    assert done.ended_at is not None
    scheduler: Any = scheduler_for("slurm", slurm_cast.cluster.config)
    assert scheduler.nodes().nodes

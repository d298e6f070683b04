"""Whatever dies when, every job exists exactly once and reaches the right state."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.test import Client
from django.utils import timezone

from apps.accounts.models import Allocation, AllocationEntry
from apps.core.errors import Conflict
from apps.jobs.actions import cancel_job, submit_job
from apps.jobs.dispatch import dispatch_jobs, due_for_recovery, recover_attempt
from apps.jobs.models import Job, JobAttempt, JobEvent
from apps.jobs.reconcile import reconcile_cluster
from apps.jobs.schedulers.local import LocalScheduler
from apps.jobs.schedulers.registry import scheduler_for
from apps.jobs.states import FINAL, JobState
from tests.faults.dying import STEPS
from tests.harness import BASE_DIR, test_environment
from tests.jobs.helpers import follow, spec, submit
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.faults]


def spool_tokens(cast: Any) -> list[str]:
    """The tokens of all jobs the scheduler has, read by a scheduler of our own."""
    found = LocalScheduler(**cast.cluster.config).changes(None)
    return [job.token for job in found.jobs]


def runs(job: Job) -> int:
    """How often the job's script has run: it appends a line to a file of its own each time."""
    path = Path(job.environment["COUNT"])
    return len(path.read_text().splitlines()) if path.exists() else 0


def counting(cast: Any, count_dir: Path, **values: Any) -> Job:
    path = count_dir / f"count-{Job.objects.count()}"
    return submit(cast, 'echo ran >> "$COUNT"', environment={"COUNT": str(path)}, **values)


@pytest.fixture
def count_dir(jobs_root: Path) -> Path:
    folder = jobs_root / "counts"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def let_claims_run_out() -> None:
    JobAttempt.objects.filter(claimed_until__isnull=False).update(claimed_until=timezone.now() - timedelta(seconds=1))


def recover_all() -> None:
    for pk, _ in due_for_recovery(timezone.now(), 1000):
        recover_attempt(pk)


@pytest.mark.parametrize("step", list(STEPS))
def test_a_worker_that_is_killed_at_any_step(cast, count_dir, step):
    job = counting(cast, count_dir)
    killed = subprocess.run(
        [sys.executable, "-m", "tests.faults.dying", step, str(job.pk)], cwd=BASE_DIR, env=test_environment()
    )
    assert killed.returncode == -9
    # Nobody else may take it while its claim lasts.
    assert dispatch_jobs([job.pk]) == 0
    let_claims_run_out()
    recover_all()
    follow(job)
    assert job.state == JobState.COMPLETED
    assert (job.attempt_count, job.attempts.count(), runs(job)) == (1, 1, 1)
    assert spool_tokens(cast) == [job.attempts.get().token]
    assert Allocation.objects.get(project=cast.project, unit="cpu_hours").reserved == 0


def test_a_worker_that_is_killed_before_the_call_leaves_the_job_to_another(cast, count_dir, real_worker):
    """A real Celery worker is killed while jobs go through it; another one ends what it left."""
    first = real_worker(processes=2)
    jobs = [counting(cast, count_dir) for _ in range(12)]
    wait_until(lambda: JobAttempt.objects.count() >= 3, 30)
    first.kill9()
    let_claims_run_out()
    real_worker(beat=True)

    def all_have_ended() -> bool:
        let_claims_run_out()
        return Job.objects.exclude(state__in=FINAL).count() == 0

    wait_until(all_have_ended, 90, every_s=1.0)
    for job in jobs:
        job.refresh_from_db()
        assert (job.state, runs(job)) == (JobState.COMPLETED, 1)
    assert Counter(spool_tokens(cast)).most_common(1)[0][1] == 1
    assert len(spool_tokens(cast)) == 12


def test_two_workers_with_the_same_job(cast, count_dir):
    """And both polls twice at once (case E01): a task that is delivered twice does its work once."""
    job = counting(cast, count_dir)
    command = (
        "import django; django.setup(); from apps.jobs.dispatch import dispatch_jobs;"
        "from apps.jobs.reconcile import reconcile_cluster, poll_nodes;"
        f"dispatch_jobs([{job.pk}]);"
        f"[(reconcile_cluster({job.cluster_id}), poll_nodes({job.cluster_id})) for _ in range(5)]"
    )
    twice = [subprocess.Popen([sys.executable, "-c", command], cwd=BASE_DIR, env=test_environment()) for _ in range(2)]
    assert [process.wait(60) for process in twice] == [0, 0]
    follow(job)
    assert (job.state, job.attempts.count(), runs(job)) == (JobState.COMPLETED, 1, 1)
    assert len(spool_tokens(cast)) == 1
    kinds = Counter(JobEvent.objects.filter(job=job, kind__startswith="state.").values_list("kind", flat=True))
    assert kinds == {"state.pending": 1, "state.running": 1, "state.completed": 1}
    assert AllocationEntry.objects.filter(ref=f"{job.public_id}:1", kind="spend").count() == 1
    assert cast.cluster.nodes.get().state_changes.count() == len(
        set(cast.cluster.nodes.get().state_changes.values_list("at", flat=True))
    )
    from apps.accounts.models import Notice

    assert Notice.objects.filter(user=cast.mina).count() == 1


def test_a_job_is_submitted_while_redis_is_gone_and_runs_when_a_worker_looks(cast, count_dir, services, real_worker):
    services.kill("valkey")
    try:
        job = counting(cast, count_dir)
    finally:
        services.start("valkey")
    import redis

    redis.Redis(unix_socket_path=str(services.valkey.socket)).flushall()
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    Job.objects.update(updated_at=timezone.now() - timedelta(seconds=10))
    real_worker(beat=True)
    wait_until(lambda: Job.objects.get(pk=job.pk).state == JobState.COMPLETED, 60)
    assert runs(job) == 1


def test_postgresql_is_killed_during_a_submit(cast, services):
    """The transaction is gone as a whole; the same request with the same key makes the job once."""
    from apps.jobs import submission

    real = submission.reserve_hours_bulk

    def kill_then_reserve(*args: Any) -> None:
        services.kill("postgres")
        real(*args)

    submission.reserve_hours_bulk = kill_then_reserve
    try:
        with pytest.raises(OperationalError):
            submit_job(cast.project, cast.cluster, spec(), by=cast.mina, idempotency_key="k")
    finally:
        submission.reserve_hours_bulk = real
        connections.close_all()
        services.start("postgres")
    assert Job.objects.count() == 0
    assert Allocation.objects.get(unit="cpu_hours").reserved == 0
    job = submit_job(cast.project, cast.cluster, spec(), by=cast.mina, idempotency_key="k")
    again = submit_job(cast.project, cast.cluster, spec(), by=cast.mina, idempotency_key="k")
    assert job.pk == again.pk
    assert Job.objects.count() == 1


def test_a_page_says_that_something_is_wrong_while_postgresql_is_gone(cast, services):
    client = Client(raise_request_exception=False)
    client.force_login(cast.mina)
    services.kill("postgres")
    try:
        answer = client.get("/jobs/")
    finally:
        connections.close_all()
        services.start("postgres")
    assert answer.status_code == 500
    assert "Something went wrong here" in answer.content.decode()
    assert client.get("/jobs/").status_code == 200


def test_the_submit_button_pressed_twice_at_once(cast, live_server):
    """Two requests in flight together: one job, and both people (it is one) land on its page."""
    client = Client()
    client.force_login(cast.mina)
    form = client.get("/jobs/new/").context["form"]
    data = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    data |= {"name": "pressed twice", "script": "echo hello", "project": "gpt", "cluster": "local", "partition": ""}
    answers: list[str] = []

    def press() -> None:
        try:
            mine = Client()
            mine.cookies = client.cookies
            answers.append(mine.post("/jobs/new/", data)["Location"])
        finally:
            connection.close()

    threads = [threading.Thread(target=press) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Job.objects.count() == 1
    assert answers == [f"/jobs/{Job.objects.get().public_id}/"] * 4


def test_the_same_key_with_another_body_is_a_conflict(cast):
    submit_job(cast.project, cast.cluster, spec(), by=cast.mina, idempotency_key="k")
    with pytest.raises(Conflict):
        submit_job(cast.project, cast.cluster, spec(name="another"), by=cast.mina, idempotency_key="k")
    # Keys are a person's own.
    submit_job(cast.project, cast.cluster, spec(), by=cast.olga, idempotency_key="k")
    assert Job.objects.count() == 2


def test_a_burst_of_500_submissions(cast, count_dir):
    """From ten threads at once; hours for exactly 400 of them. Each that was taken is handed over exactly once."""
    Allocation.objects.filter(unit="cpu_hours").update(granted=Decimal(400))
    refused: list[str] = []

    def submit_fifty(n: int) -> None:
        from apps.core.errors import OverLimit

        try:
            for k in range(50):
                try:
                    submit_job(
                        cast.project, cast.cluster, spec("true", name=f"burst {n}-{k}"), by=cast.mina, hold=False
                    )
                except OverLimit as error:
                    refused.append(error.message)
        finally:
            connection.close()

    threads = [threading.Thread(target=submit_fifty, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (Job.objects.count(), len(refused)) == (400, 100)
    assert Allocation.objects.get(unit="cpu_hours").reserved == Decimal(400)
    pks = list(Job.objects.values_list("pk", flat=True))
    claimed: list[int] = []

    def hand_over(mine: list[int]) -> None:
        try:
            claimed.append(dispatch_jobs(mine))
        finally:
            connection.close()

    # The same jobs in the same order, so that the two meet at every one.
    workers = [threading.Thread(target=hand_over, args=(pks,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(claimed) == 400
    tokens = spool_tokens(cast)
    assert (len(tokens), len(set(tokens))) == (400, 400)
    assert set(tokens) == set(JobAttempt.objects.values_list("token", flat=True))

    def all_have_ended() -> bool:
        reconcile_cluster(cast.cluster.pk)
        return not Job.objects.exclude(state__in=FINAL).exists()

    wait_until(all_have_ended, 240, every_s=0.2)
    assert Counter(Job.objects.values_list("state", flat=True)) == {"completed": 400}
    assert Allocation.objects.get(unit="cpu_hours").reserved == 0


def test_a_cancel_that_comes_while_the_job_is_handed_over(cast, count_dir):
    job = counting(cast, count_dir)
    subprocess.run(
        [sys.executable, "-m", "tests.faults.dying", "after the submit", str(job.pk)],
        cwd=BASE_DIR,
        env=test_environment(),
    )
    cancel_job(job, by=cast.mina)
    job.refresh_from_db()
    assert (job.state, job.wanted) == (JobState.DISPATCHING, "cancel")
    let_claims_run_out()
    recover_all()
    follow(job)
    assert (job.state, runs(job)) == (JobState.CANCELLED, 0)


def test_a_stray_of_ours_is_ended_and_anybody_elses_is_adopted(cast):
    """A job with our mark that no row knows (a restored database) must not start; another install's is only shown."""
    from apps.core.install import install_id
    from apps.jobs.schedulers.base import RunAs, Submission

    scheduler = scheduler_for(cast.cluster.scheduler, cast.cluster.config)
    run_as = RunAs("swy-59999", None if cast.cluster.config["allow_same_user"] else 59999, 59999)
    if run_as.uid is None:
        run_as = RunAs("me")
    ours = scheduler.submit_held(Submission(f"sw-{install_id()}-lost", "lost", "#!/bin/sh\n", {}, run_as))
    other = scheduler.submit_held(Submission("sw-00000000-theirs", "theirs", "#!/bin/sh\n", {}, run_as))
    reconcile_cluster(cast.cluster.pk)
    states = {job.external_id: job.state for job in scheduler.jobs([ours, other])}
    assert states == {ours: JobState.CANCELLED, other: JobState.PENDING}
    adopted = Job.objects.get()
    assert (adopted.name, adopted.project, adopted.submitted_by, adopted.is_held) == ("theirs", None, None, True)
    reconcile_cluster(cast.cluster.pk)
    assert Job.objects.count() == 1


def test_a_poll_that_read_the_rows_before_the_id_was_recorded_leaves_the_job_alone(cast, count_dir, monkeypatch):
    """The rows are read, then the dispatch records the id: the held job is nobody's stray."""
    from apps.jobs import dispatch, observing

    monkeypatch.setattr(dispatch, "_release", lambda *_: None)
    job = counting(cast, count_dir)
    dispatch_jobs([job.pk])
    with monkeypatch.context() as late:
        late.setattr(observing, "_known_attempts", lambda *_: {})
        reconcile_cluster(cast.cluster.pk)
    monkeypatch.undo()
    let_claims_run_out()
    recover_all()
    follow(job)
    assert (job.state, runs(job)) == (JobState.COMPLETED, 1)


def test_a_scheduler_that_lost_its_memory_makes_jobs_lost_not_deleted(cast):
    import shutil

    job = submit(cast, "sleep 60")
    dispatch_jobs([job.pk])
    reconcile_cluster(cast.cluster.pk)
    scheduler_for(cast.cluster.scheduler, cast.cluster.config).end_running("test", 10)
    shutil.rmtree(cast.cluster.config["spool_dir"])
    cast.cluster.config = {**cast.cluster.config, "max_time_s": 86400}  # another object, with no memory either
    cast.cluster.save()
    reconcile_cluster(cast.cluster.pk)
    job.refresh_from_db()
    assert job.state not in FINAL
    JobAttempt.objects.update(missing_since=timezone.now() - timedelta(seconds=61))
    reconcile_cluster(cast.cluster.pk)
    job.refresh_from_db()
    assert job.state == JobState.LOST
    assert "no longer knows it" in job.reason


def test_a_poll_that_fails_leaves_everything_as_it_was(cast):
    job = submit(cast, "sleep 60")
    dispatch_jobs([job.pk])
    reconcile_cluster(cast.cluster.pk)
    before = Job.objects.values("state", "reason", "updated_at").get(pk=job.pk)
    good = cast.cluster.config
    cast.cluster.refresh_from_db()
    succeeded_at = cast.cluster.poll_succeeded_at
    cast.cluster.config = {**good, "nonsense": 1}
    cast.cluster.save()
    reconcile_cluster(cast.cluster.pk)
    cast.cluster.refresh_from_db()
    assert cast.cluster.poll_succeeded_at == succeeded_at
    assert "nonsense" in cast.cluster.poll_error
    assert Job.objects.values("state", "reason", "updated_at").get(pk=job.pk) == before
    scheduler_for("local", good).end_running("test", 10)

"""Minutes of work while everything is killed again and again. `make test-long`."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter

import pytest
from django.db import OperationalError, connections
from django.db.utils import InterfaceError

from apps.accounts.models import Allocation, AllocationEntry
from apps.jobs.actions import cancel_job, submit_job
from apps.jobs.models import Job
from apps.jobs.schedulers.local import LocalScheduler
from apps.jobs.states import FINAL
from tests.faults.test_exactly_once import let_claims_run_out
from tests.jobs.helpers import spec
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.faults, pytest.mark.long]

SOAK_S = int(os.environ.get("SWITCHYARD_SOAK_S", "180"))


@pytest.mark.timeout(900)
def test_everything_is_killed_for_minutes_and_every_job_runs_once(cast, services, real_worker, jobs_root):
    choose = random.Random(7)
    counts = jobs_root / "counts"
    counts.mkdir()
    counts.chmod(0o777)
    workers = [real_worker(beat=True), real_worker()]
    keys: list[str] = []
    killed: Counter[str] = Counter()
    until = time.monotonic() + SOAK_S
    while time.monotonic() < until:
        key = f"key-{len(keys)}"
        script = f'echo ran >> "{counts}/{key}"; sleep {choose.random():.2f}'
        for _ in range(60):  # as a script would: the same request with the same key until it is answered
            try:
                job = submit_job(cast.project, cast.cluster, spec(script, name=key), by=cast.mina, idempotency_key=key)
                break
            except (OperationalError, InterfaceError):
                connections.close_all()
                time.sleep(0.5)
        keys.append(key)
        with contextlib.suppress(OperationalError, InterfaceError, Exception):
            if choose.random() < 0.1:
                cancel_job(job, by=cast.mina)
        if choose.random() < 0.15:
            victim = choose.choice(["worker", "worker", "valkey", "postgres"])
            killed[victim] += 1
            if victim == "worker":
                place = choose.randrange(2)
                workers[place].kill9()
                workers[place] = real_worker(beat=place == 0)
            else:
                services.kill(victim)
                time.sleep(choose.random() * 2)
                services.start(victim)
                connections.close_all()
        time.sleep(choose.random() * 0.5)

    def unfinished() -> list[tuple[object, ...]]:
        open_jobs = Job.objects.exclude(state__in=FINAL)
        return list(open_jobs.values_list("name", "state", "wanted", "is_held", "external_id", "reason")[:20])

    def all_have_ended() -> bool:
        let_claims_run_out()
        for place, worker in enumerate(workers):  # as the supervisor does
            if worker.process.poll() is not None:
                killed["found dead"] += 1
                workers[place] = real_worker(beat=place == 0)
        return not unfinished()

    try:
        wait_until(all_have_ended, 240, every_s=2)
    except AssertionError:
        pytest.fail(
            f"not ended: {unfinished()}; polled {cast.cluster.__class__.objects.values().get()}; killed {killed}"
        )
    ended = dict(Counter(Job.objects.values_list("state", flat=True)))
    print(f"\n{len(keys)} jobs; killed: {dict(killed)}; ended: {ended}")
    assert Job.objects.count() == len(keys)
    assert set(Job.objects.values_list("name", flat=True)) == set(keys)
    for job in Job.objects.all():
        path = counts / job.name
        runs = len(path.read_text().splitlines()) if path.exists() else 0
        assert runs == 1 if job.state == "completed" else runs <= 1, (job.name, job.state, runs)
        assert job.state in {"completed", "cancelled"}, (job.name, job.state, job.reason)
    tokens = [job.token for job in LocalScheduler(**cast.cluster.config).changes(None).jobs]
    assert len(tokens) == len(set(tokens))
    assert Allocation.objects.get(project=cast.project, unit="cpu_hours").reserved == 0
    assert set(Counter(AllocationEntry.objects.values_list("ref", "kind")).values()) == {1}

"""Everybody at once: people who cancel, hold and release while two workers hand over and look."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter

import pytest
from django.db import connection

from apps.accounts.models import Allocation, AllocationEntry
from apps.core.errors import Conflict
from apps.jobs.actions import cancel_job, hold_job, release_job
from apps.jobs.models import Job, JobEvent
from apps.jobs.schedulers.local import LocalScheduler
from apps.jobs.states import FINAL
from tests.jobs.helpers import submit
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.faults]


def test_people_and_workers_at_once(cast, real_worker):
    jobs = [submit(cast, "sleep 0.2") for _ in range(30)]
    real_worker(processes=3, beat=True)
    until = time.monotonic() + 12
    surprises: list[BaseException] = []

    def meddle(seed: int) -> None:
        choose = random.Random(seed)
        try:
            while time.monotonic() < until:
                job = choose.choice(jobs)
                verb = choose.choices([cancel_job, hold_job, release_job], [1, 3, 4])[0]
                with contextlib.suppress(Conflict):
                    verb(job, by=cast.mina)
                time.sleep(choose.random() * 0.05)
        except BaseException as error:
            surprises.append(error)
        finally:
            connection.close()

    people = [threading.Thread(target=meddle, args=(seed,)) for seed in range(3)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert surprises == []

    def let_all_end() -> bool:
        for job in Job.objects.filter(is_held=True, wanted="").exclude(state__in=FINAL):
            with contextlib.suppress(Conflict):
                release_job(job, by=cast.mina)
        return not Job.objects.exclude(state__in=FINAL).exists()

    wait_until(let_all_end, 90, every_s=0.5)
    states = Counter(Job.objects.values_list("state", flat=True))
    assert set(states) <= {"completed", "cancelled"}, states
    assert Job.objects.exclude(wanted="").count() == 0
    allocation = Allocation.objects.get(project=cast.project, unit="cpu_hours")
    assert allocation.reserved == 0
    assert allocation.spent == sum(Job.objects.values_list("cpu_hours", flat=True))
    # Every job was reserved and released once, handed over at most once, and ended once.
    kinds = Counter(AllocationEntry.objects.values_list("ref", "kind"))
    assert set(kinds.values()) == {1}
    assert sum(1 for _, kind in kinds if kind == "release") == 30
    tokens = [job.token for job in LocalScheduler(**cast.cluster.config).changes(None).jobs]
    assert len(tokens) == len(set(tokens)) <= 30
    ends = Counter(JobEvent.objects.filter(kind__in=[f"state.{s}" for s in FINAL]).values_list("job_id", flat=True))
    assert set(ends.values()) == {1}

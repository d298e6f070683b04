"""Every scheduler that must pass the contract. A new one adds a function here, and nothing in the suite."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from apps.jobs.schedulers.base import ObservedJob, RunAs, Scheduler, Submission
from apps.jobs.schedulers.local import LocalScheduler
from apps.jobs.schedulers.slurm.scheduler import SlurmScheduler
from apps.jobs.states import FINAL, JobState
from lab.slurm.lab import SlurmLab
from tests.cast import local_config
from tests.slurmlab import slurm_config
from tests.waiting import wait_until


@dataclass
class UnderTest:
    """A scheduler, another view of the same one (as another process has it), and as whom its jobs run.

    Jobs run in `partition` (None: the default one), which has `cpus` in all on its one node. `seconds`: how long it
    may take to start or end a job; `sets_nodes` whether it drains and resumes nodes. `shortest_limit_s` is the finest
    time limit it can keep, `over_limit_s` how late it may be. `over_memory` are the states it may give a job that needs
    too much memory; `keeps_reasons` whether it says itself why a job was cancelled; `refuses_at_once` whether it
    looks at a held job's demands before it is released.
    """

    scheduler: Scheduler
    other: Scheduler
    run_as: RunAs
    cpus: int
    seconds: float
    partition: str | None = None
    sets_nodes: bool = False
    shortest_limit_s: int = 1
    over_limit_s: int = 14
    over_memory: tuple[JobState, ...] = (JobState.OUT_OF_MEMORY,)
    keeps_reasons: bool = True
    refuses_at_once: bool = True

    def submission(self, script: str, **values: Any) -> Submission:
        given = Submission(
            token=f"sw-contract-{uuid.uuid4().hex}",
            name="a job",
            script=f"#!/bin/sh\n{script}\n",
            environment={},
            run_as=self.run_as,
            time_limit_s=120,
            partition=self.partition,
        )
        return replace(given, **values)

    def start(self, script: str, **values: Any) -> str:
        external_id = self.scheduler.submit_held(self.submission(script, **values))
        self.scheduler.release(external_id)
        return external_id

    def job(self, external_id: str) -> ObservedJob:
        (job,) = self.scheduler.jobs([external_id])
        return job

    def wait_for(self, external_id: str, *states: JobState) -> ObservedJob:
        """Until the job is in one of the states; by default, until it has ended."""
        wanted = states or tuple(FINAL)

        def reached() -> ObservedJob | None:
            self.scheduler.changes(None)  # some schedulers move only when they are looked at
            job = self.job(external_id)
            return job if job.state in wanted else None

        found = wait_until(reached, self.seconds)
        assert found is not None
        return found


def local(root: Path) -> UnderTest:
    config = local_config(root)
    run_as = RunAs("me") if os.geteuid() else RunAs("swy-59900", 59900, 59900)
    return UnderTest(LocalScheduler(**config), LocalScheduler(**config), run_as, cpus=2, seconds=20, sets_nodes=True)


def slurm(lab: SlurmLab, **more: Any) -> UnderTest:
    """Every job of the contract runs on the one node of partition `one`, so that it can be filled."""
    config = {**slurm_config(lab), **more}
    return UnderTest(
        SlurmScheduler(**config),
        SlurmScheduler(**config),
        RunAs("alice"),
        cpus=96,
        seconds=60,
        partition="one",
        sets_nodes=True,
        shortest_limit_s=60,
        over_limit_s=60,
        # Without cgroups its daemon ends such a job as one that failed.
        over_memory=(JobState.OUT_OF_MEMORY, JobState.FAILED),
        keeps_reasons=False,
        refuses_at_once=False,
    )


SCHEDULERS: dict[str, Callable[[pytest.FixtureRequest], UnderTest]] = {
    "local": lambda request: local(request.getfixturevalue("jobs_root")),
    "slurm": lambda request: slurm(request.getfixturevalue("slurm_lab")),
}


@pytest.fixture(params=list(SCHEDULERS))
def under_test(request: pytest.FixtureRequest) -> Iterator[UnderTest]:
    made = SCHEDULERS[request.param](request)
    yield made
    for job in made.scheduler.changes(None).jobs:
        if job.state not in FINAL:
            made.scheduler.cancel(job.external_id)
    wait_until(lambda: all(j.state in FINAL for j in made.scheduler.changes(None).jobs), made.seconds)

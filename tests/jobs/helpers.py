"""Submitting and following jobs in tests."""

from __future__ import annotations

from typing import Any

from apps.jobs.actions import submit_job
from apps.jobs.dispatch import dispatch_jobs
from apps.jobs.models import Job
from apps.jobs.reconcile import reconcile_cluster
from apps.jobs.spec import JobSpec
from apps.jobs.states import FINAL
from tests.waiting import wait_until


def spec(script: str = "echo hello", **values: Any) -> JobSpec:
    return JobSpec(**{"name": "a job", "kind": "test", "script": script, "time_limit_s": 3600, **values})


def submit(cast: Any, script: str = "echo hello", *, by: Any = None, hold: bool = False, **values: Any) -> Job:
    return submit_job(cast.project, cast.cluster, spec(script, **values), by=by or cast.mina, hold=hold)


def follow(job: Job, timeout_s: float = 30) -> Job:
    """Do what the workers do until the job has ended."""

    def has_ended() -> bool:
        dispatch_jobs([job.pk])
        reconcile_cluster(job.cluster_id)
        job.refresh_from_db()
        return job.state in FINAL

    wait_until(has_ended, timeout_s)
    return job

"""A job's page asks the same number of questions whatever the job's history."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.jobs.models import Checkpoint, Job, JobAttempt, JobEvent, MetricSeries
from tests.benchmarks.measure import median_ms, report

pytestmark = [pytest.mark.bench, pytest.mark.django_db]


def job_with(cast: Any, events: int, attempts: int, checkpoints: int) -> Job:
    job = Job.objects.create(
        project=cast.project, cluster=cast.cluster, submitted_by=cast.mina, name="a", kind="test", script="x",
        state="completed", attempt_count=attempts,
    )  # fmt: skip
    tries = JobAttempt.objects.bulk_create(
        JobAttempt(job=job, cluster=cast.cluster, number=n + 1, token=f"{job.pk}-{n}", state="completed")
        for n in range(attempts)
    )
    JobEvent.objects.bulk_create(JobEvent(job=job, kind="x", text="something happened") for _ in range(events))
    Checkpoint.objects.bulk_create(
        Checkpoint(job=job, attempt=tries[-1], path="c.npz", step=n) for n in range(checkpoints)
    )
    MetricSeries.objects.create(attempt=tries[-1], name="loss", data={"steps": [1], "values": [2.0]})
    return job


@pytest.mark.parametrize("url", ["/jobs/{}/", "/api/v1/jobs/{}/", "/api/v1/jobs/{}/events/"])
def test_a_long_history_costs_no_more_queries(cast, url):
    client = Client()
    client.force_login(cast.mina)

    def get(job: Job) -> None:
        assert client.get(url.format(job.public_id)).status_code == 200

    young, old = job_with(cast, 10, 1, 1), job_with(cast, 5000, 20, 1000)
    counts, times = [], []
    for job in (young, old):
        get(job)
        with CaptureQueriesContext(connection) as captured:
            get(job)
        counts.append(len(captured))
        times.append(median_ms(lambda job=job: get(job)))
    print(f"\n{url.format('<job>')}: {counts[0]} queries with 10 events, {counts[1]} with 5,000 events and 20 attempts")
    report("5,000 events, 20 attempts, 1,000 checkpoints", times[1], times[0], None)
    assert counts[0] == counts[1]

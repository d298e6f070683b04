"""A database that is gone: an answer in words and a time to come back, and no job is lost or made twice by it."""

from __future__ import annotations

import pytest
from django.db import connection

from apps.jobs.models import Job
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.faults]


def test_a_dead_database_is_503_and_the_same_request_works_when_it_is_back(mina, body, services):
    assert mina.get("/api/v1/jobs/").status_code == 200
    services.kill("postgres")
    try:
        for _ in range(2):  # first the open connection breaks, then no new one is to be had
            response = mina.post("/api/v1/jobs/", body(), headers={"Idempotency-Key": "once"})
            assert response.status_code == 503, response.content
            assert response["Content-Type"] == "application/problem+json"
            assert response["Retry-After"] == "5"
            connection.close()
    finally:
        services.start("postgres")
    wait_until(lambda: mina.get("/api/v1/jobs/").status_code == 200, 30)
    assert mina.post("/api/v1/jobs/", body(), headers={"Idempotency-Key": "once"}).status_code == 201
    assert Job.objects.count() == 1

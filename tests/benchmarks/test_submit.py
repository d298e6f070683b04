"""How fast jobs are submitted through REST until they are committed, beside a bare INSERT of the very same rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection, transaction
from psycopg2.extras import execute_values

from apps.jobs.models import Job
from tests.api.conftest import ApiClient

pytestmark = [pytest.mark.bench, pytest.mark.django_db(transaction=True)]

ONE_BY_ONE = 300
BATCH = 1000
# Everything a submit stores, in an order that the foreign keys allow.
TABLES = ("jobs_job", "jobs_jobevent", "core_auditentry", "accounts_allocationentry", "jobs_submissionkey")
Rows = dict[str, tuple[list[str], list[tuple[Any, ...]]]]


@pytest.fixture
def mina(cast) -> ApiClient:
    from apps.accounts.actions import create_token
    from apps.accounts.models import Allocation

    Allocation.objects.update(granted=10**9)
    _, text = create_token(cast.mina, name="bench", days=1)
    client = ApiClient(authorization=f"Bearer {text}")
    client.get("/api/v1/jobs/")  # the first request loads the URLs
    return client


def spec(n: int) -> dict[str, Any]:
    return {
        "name": f"sweep {n}",
        "kind": "training",
        "script": '#!/bin/bash\nexec "$SWITCHYARD_PYTHON" train.py --seed 1\n',
        "environment": {"SEED": str(n)},
        "cpus_per_node": 2,
        "memory_bytes_per_node": 2**30,
        "time_limit_s": 3600,
        "tags": ["sweep"],
    }


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def taken_out() -> Rows:
    """The rows of all submits as text, and the tables empty again."""
    found: Rows = {}
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT * FROM {table} LIMIT 0")
            names = [column.name for column in cursor.description]
            cursor.execute(f"SELECT {', '.join(f'{name}::text' for name in names)} FROM {table} ORDER BY {table}.id")
            found[table] = names, cursor.fetchall()
        cursor.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")
    return found


def put_back(rows: Rows, start: int, end: int) -> None:
    """Rows [start, end) of each table by one statement a table, in one transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        for table, (names, values) in rows.items():
            part: Sequence[Any] = values[start * len(values) // len(rows["jobs_job"][1]) :]
            part = part[: (end - start) * len(values) // len(rows["jobs_job"][1])]
            if part:
                execute_values(
                    cursor.cursor, f"INSERT INTO {table} ({', '.join(names)}) VALUES %s", part, page_size=len(part)
                )


def show(what: str, jobs: int, rest_s: float, bare_s: float) -> None:
    print(
        f"\n  {what:<34} REST {jobs / rest_s:7,.0f} jobs/s   bare INSERT {jobs / bare_s:7,.0f} jobs/s   "
        f"REST takes {rest_s / bare_s:.1f}x as long"
    )


def test_one_by_one(mina):
    place = {"project": "gpt", "cluster": "local"}

    def submit() -> None:
        for n in range(ONE_BY_ONE):
            assert mina.post("/api/v1/jobs/", {**place, **spec(n)}).status_code == 201

    rest_s = seconds(submit)
    rows = taken_out()
    bare_s = seconds(lambda: [put_back(rows, n, n + 1) for n in range(ONE_BY_ONE)])
    assert Job.objects.count() == ONE_BY_ONE
    show(f"{ONE_BY_ONE} jobs, one a request", ONE_BY_ONE, rest_s, bare_s)


def test_a_thousand_in_one_request(mina):
    body = {"project": "gpt", "cluster": "local", "jobs": [spec(n) for n in range(BATCH)]}
    rest_s = seconds(lambda: mina.post("/api/v1/jobs/bulk/", body))
    assert Job.objects.count() == BATCH
    rows = taken_out()
    bare_s = seconds(lambda: put_back(rows, 0, BATCH))
    assert Job.objects.count() == BATCH
    show(f"{BATCH:,} jobs in one request", BATCH, rest_s, bare_s)

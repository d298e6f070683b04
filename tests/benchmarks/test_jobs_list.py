"""The jobs list over a million jobs: no page of it may take more than twice the first page over a thousand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings
from django.utils import timezone

from tests.benchmarks.measure import median_ms, report
from tests.cast import make_cast

pytestmark = [pytest.mark.bench, pytest.mark.django_db]

MILLION = 1_000_000
LIMIT = 2.0

# Every hundredth job is of the small project, one in ten thousand has a rare name; Sam owns the oldest hundredth.
INSERT = """
INSERT INTO jobs_job (
    public_id, project_id, cluster_id, submitted_by_id, unix_user, account_name, name, kind, script, environment,
    working_dir, partition, nodes, accelerators_per_node, cpus_per_node, time_limit_s, max_retries, tags, state, reason,
    is_held, wanted, wanted_reason, attempt_count, external_id, created_at, updated_at, progress_text
)
SELECT 'job-' || lpad(n::text, 12, '0'),
    CASE WHEN n <= %(old)s THEN %(old_project)s WHEN n %% 100 = 0 THEN %(small)s ELSE %(big)s END,
    %(cluster)s, %(by)s, 'swy-1', '',
    CASE WHEN n %% 10000 = 17 THEN 'needle ' ELSE '' END || 'train llama ' || md5(n::text), 'training',
    E'#!/bin/bash\\necho ' || n, '{}', '', '', 1, 8, 8, 3600, 0, ARRAY['sweep-' || n / 1000],
    CASE WHEN n %% 10 = 0 THEN 'failed' ELSE 'completed' END, '', false, '', '', 1, n::text,
    now() - make_interval(secs => %(last)s - n), now(), ''
FROM generate_series(%(first)s, %(last)s) n
"""


@dataclass
class Site:
    cast: Any
    base_ms: float
    page_base_ms: float
    old_project: Any
    small: Any

    def client(self, person: Any) -> Client:
        client = Client()
        client.force_login(person)
        return client


def _plain_storages() -> dict[str, Any]:
    """The tests' own setting, which reaches single tests only."""
    backend = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    return {**settings.STORAGES, "staticfiles": backend}


def _insert(site_ids: dict[str, int], first: int, last: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT, {**site_ids, "first": first, "last": last})
        cursor.execute("VACUUM ANALYZE jobs_job")


def _get(client: Client, url: str) -> Any:
    response = client.get(url)
    assert response.status_code == 200, response.content
    return response


@pytest.fixture(scope="module")
def site(django_db_setup, django_db_blocker, tmp_path_factory) -> Iterator[Site]:
    """Committed rows: first a thousand, measured, then a million."""
    with django_db_blocker.unblock():
        from apps.accounts.models import Membership, Project

        cast = make_cast(tmp_path_factory.mktemp("bench"))
        small = Project.objects.create(name="small")
        old_project = Project.objects.create(name="old")
        Membership.objects.create(project=small, user=cast.vic, role="viewer")
        Membership.objects.filter(user=cast.vic).exclude(project=small).delete()
        Membership.objects.create(project=old_project, user=cast.sam, role="viewer")
        ids = {
            "cluster": cast.cluster.pk,
            "by": cast.mina.pk,
            "big": cast.project.pk,
            "small": small.pk,
            "old_project": old_project.pk,
            "old": MILLION // 100,
        }
        _insert({**ids, "old": 0}, MILLION + 1, MILLION + 1000)
        site = Site(cast, 0, 0, old_project, small)
        client = site.client(cast.rex)
        site.base_ms = median_ms(lambda: _get(client, "/api/v1/jobs/"))
        with override_settings(STORAGES=_plain_storages()):
            site.page_base_ms = median_ms(lambda: _get(client, "/jobs/"))
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE jobs_job CASCADE")
        _insert(ids, 1, MILLION)
        print(f"\nJobs list, 1,000,000 jobs; 1.00x is the first page over 1,000 jobs: {site.base_ms:.2f} ms")
        yield site
        call_command("flush", interactive=False, verbosity=0)


def _deep(client: Client, pages: int) -> str:
    """The URL of the page `pages` pages in, reached as anybody does: by `next`."""
    url = "/api/v1/jobs/?limit=200"
    for _ in range(pages // 4):  # a page of 50 is a quarter of these
        url = _get(client, url).json()["next"]
    return url.replace("limit=200", "limit=50")


SEARCHES = {
    "needle": "a rare part of a name (1 in 10,000)",
    "llama": "a part of every name",
    "abcd": "four letters of a hash (1 in 2,300)",
    "nothing-like-it": "a part of no name",
}


def test_the_api_list(site: Site):
    kept = True
    for who, person in (
        ("operator", site.cast.rex),
        ("member of 1 %, spread", site.cast.vic),
        ("member of 1 %, the oldest", site.cast.sam),
    ):
        client = site.client(person)
        cases = {"first page": "/api/v1/jobs/"}
        pages = 1000 if person is site.cast.rex else 180  # who sees 10,000 jobs has 200 pages
        cases[f"{pages:,} pages deep"] = _deep(client, pages)
        cases |= {f"search: {text}": f"/api/v1/jobs/?q={q}" for q, text in SEARCHES.items()}
        cases |= {"only failed ones": "/api/v1/jobs/?state=failed", "only running ones": "/api/v1/jobs/?state=running"}
        for what, url in cases.items():
            kept &= report(f"{who}: {what}", median_ms(lambda c=client, u=url: _get(c, u)), site.base_ms, LIMIT)
        # Not limited: rows are in the order of their ids, so what lies before a date has to be looked for.
        until = quote((timezone.now() - timedelta(days=11)).isoformat())
        url = f"/api/v1/jobs/?until={until}"
        report(f"{who}: before a date", median_ms(lambda c=client, u=url: _get(c, u)), site.base_ms, None)
    assert kept, f"some pages take more than {LIMIT:g} times the first page over 1,000 jobs"


def test_the_page_of_jobs(site: Site):
    """The page also says how many there are, capped."""
    print(f"\nThe page /jobs/; 1.00x is the same over 1,000 jobs: {site.page_base_ms:.2f} ms")
    kept = True
    for who, person in (("operator", site.cast.rex), ("member of 1 %, spread", site.cast.vic)):
        client = site.client(person)
        for what, url in {
            "first page": "/jobs/",
            **{f"search: {t}": f"/jobs/?q={q}" for q, t in SEARCHES.items()},
        }.items():
            taken_ms = median_ms(lambda c=client, u=url: _get(c, u))
            kept &= report(f"{who}: {what}", taken_ms, site.page_base_ms, LIMIT)
    assert kept

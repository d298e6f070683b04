"""The first page for each role, search, errors and the headers every page carries."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

import pytest
from django.utils import timezone

from apps.accounts.models import Project
from apps.inventory.models import Accelerator, Cluster, Node
from apps.jobs.models import Job, JobAttempt, MetricSeries
from apps.jobs.overview import overview, spark_path
from tests.jobs.helpers import submit

pytestmark = pytest.mark.django_db


def text_of(answer) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def put(cast, state: str, *, by=None, project=None, ended_ago_h: float | None = None, **values) -> Job:
    now = timezone.now()
    return Job.objects.create(
        name=values.pop("name", state),
        kind="training",
        script="x",
        project=project or cast.project,
        cluster=cast.cluster,
        submitted_by=by or cast.mina,
        state=state,
        ended_at=None if ended_ago_h is None else now - timedelta(hours=ended_ago_h),
        **values,
    )


@pytest.fixture
def busy(cast):
    """Two run, one waits, and of three that failed one did so the day before yesterday."""
    Cluster.objects.update(poll_succeeded_at=timezone.now())
    put(cast, "running", progress=0.5, progress_text="step 5 of 10")
    put(cast, "running", by=cast.olga, name="olga's")
    put(cast, "pending", reason="first in line, waits for 2 CPUs")
    put(cast, "failed", ended_ago_h=1, cpu_hours=Decimal(3), gpu_hours=Decimal(8))
    put(cast, "timed_out", ended_ago_h=2, cpu_hours=Decimal(1))
    put(cast, "failed", ended_ago_h=49, cpu_hours=Decimal(5))
    put(cast, "completed", ended_ago_h=24 * 8, cpu_hours=Decimal(100))
    other = Project.objects.create(name="secret")
    put(cast, "running", by=cast.sam, project=other, name="sam's")
    return cast


def test_a_member_sees_their_own_and_counts_of_their_projects(busy):
    found = overview(busy.mina)
    assert [job.name for job in found.running] == ["running"]
    assert (found.running_count, found.waiting_count, found.failed_count) == (2, 1, 2)
    assert (found.cpu_hours_week, found.gpu_hours_week) == (9, 8)
    assert [(p.name, left.cpu) for p, left in found.projects] == [("gpt", 10000)]
    assert [text for text, _ in found.trouble] == ["2 jobs failed in the last 24 h"]


def test_an_operator_sees_everything_and_what_is_broken_first(busy):
    Cluster.objects.update(
        poll_succeeded_at=timezone.now() - timedelta(minutes=5), poll_error="the spool folder cannot be used"
    )
    for n in range(3):
        Node.objects.create(name=f"n{n}", cluster=busy.cluster, state="down" if n else "idle")
    stuck = put(busy, "dispatching")
    JobAttempt.objects.create(
        job=stuck, cluster=busy.cluster, number=1, token="t", created_at=timezone.now() - timedelta(minutes=10)
    )
    found = overview(busy.rex)
    assert found.running_count == 3
    assert [text for text, _ in found.trouble] == [
        "local does not answer: the spool folder cannot be used",
        "2 nodes of local down",
        "1 job cannot be handed to a scheduler",
        "2 jobs failed in the last 24 h",
    ]


def test_why_a_cluster_does_not_answer_is_for_operators(busy, client):
    Cluster.objects.update(poll_succeeded_at=None, poll_error="a path of the server")
    client.force_login(busy.mina)
    for path in ("/", "/clusters/local/"):
        shown = text_of(client.get(path))
        assert "does not answer" in shown
        assert "a path of the server" not in shown
    client.force_login(busy.rex)
    assert "a path of the server" in text_of(client.get("/clusters/local/"))


def test_the_overview_costs_the_same_however_many_jobs_there_are(busy, client, django_assert_max_num_queries):
    client.force_login(busy.mina)
    with django_assert_max_num_queries(16):
        client.get("/")
    for n in range(40):
        job = put(busy, "running", name=f"n{n}")
        attempt = JobAttempt.objects.create(job=job, cluster=busy.cluster, number=1, token=f"t{n}")
        MetricSeries.objects.create(attempt=attempt, name="loss", data={"steps": [1, 2], "values": [2, 1], "count": 2})
    with django_assert_max_num_queries(16):
        assert b'class="spark"' in client.get("/").content


def test_a_loss_is_drawn_from_its_highest_to_its_lowest():
    assert spark_path([4, 2, 3]) == "M0.0,1.0 L50.0,19.0 L100.0,10.0"
    assert spark_path([1]) == ""
    assert spark_path([2, 2]) == "M0.0,19.0 L100.0,19.0"
    assert spark_path(list(range(100_000))).count("L") <= 61


# -- search


def test_an_exact_id_leads_straight_there(busy, client):
    client.force_login(busy.mina)
    job = Job.objects.get(name="pending")
    Job.objects.filter(pk=job.pk).update(external_id="4711")
    assert client.get(f"/search/?q={job.public_id}")["Location"] == f"/jobs/{job.public_id}/"
    assert client.get("/search/?q=4711")["Location"] == f"/jobs/{job.public_id}/"
    node = Node.objects.create(name="gpu001", cluster=busy.cluster)
    Accelerator.objects.create(uuid="GPU-abc", node=node, index=0)
    for text in ("gpu001", "GPU-abc"):
        assert client.get(f"/search/?q={text}")["Location"] == f"/nodes/{node.pk}/"


def test_search_finds_names_one_may_see_and_no_others(busy, client):
    secret = Job.objects.get(name="sam's")
    client.force_login(busy.mina)
    assert "Nothing found" in text_of(client.get("/search/?q=sam%27s"))
    assert client.get(f"/search/?q={secret.public_id}").status_code == 200
    assert "Nothing found" in text_of(client.get("/search/?q=secret"))
    client.force_login(busy.rex)
    shown = text_of(client.get("/search/?q=sam"))
    assert "person sam" in shown
    assert secret.public_id in shown


# -- errors and headers


def test_pages_that_are_not_there_say_so_in_the_frame(cast, client):
    client.force_login(cast.mina)
    answer = client.get("/no/such/page/")
    assert answer.status_code == 404
    assert "There is no such page here" in text_of(answer)
    assert 'aria-label="Main"' in answer.content.decode()


def test_a_fault_of_ours_is_a_page_too(cast, client, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr("apps.web.overview.overview_of", broken)
    client.force_login(cast.mina)
    client.raise_request_exception = False
    answer = client.get("/")
    assert answer.status_code == 500
    assert "Something went wrong here" in text_of(answer)
    assert "a secret of the server" not in answer.content.decode()


def test_a_form_without_its_token_is_refused(cast):
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    client.force_login(cast.mina)
    job = submit(cast)
    answer = client.post(f"/jobs/{job.public_id}/cancel/")
    assert answer.status_code == 403
    assert "too old" in text_of(answer)
    job.refresh_from_db()
    assert job.state == "queued"


def test_every_page_says_what_a_browser_may_do(cast, client):
    client.post("/sign-in/", {"username": "mina", "password": cast.PASSWORD})
    answer = client.get("/jobs/")
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert "frame-ancestors 'none'" in policy
    assert (answer["X-Frame-Options"], answer["X-Content-Type-Options"]) == ("DENY", "nosniff")
    cookie = client.cookies["switchyard_session"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"


def test_no_template_has_a_script_or_a_handler_inside():
    from tests.harness import BASE_DIR

    for path in (BASE_DIR / "templates").rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), path
        assert not re.search(r"\son[a-z]+\s*=", re.sub(r"{%.*?%}|{{.*?}}", "", text)), path
        assert "|safe" not in text, path
        assert "https://" not in text, path

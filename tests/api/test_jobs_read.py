"""Lists, pages, one job and its parts, and cancel, hold and release: for who may, and 404 for who may not know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.accounts.models import Membership, Project, Role
from apps.api.job_parts import Attempts, Checkpoints, Events
from apps.api.job_shapes import JOB_COLUMNS, AttemptOut, CheckpointOut, EventOut, JobDetailOut, JobOut
from apps.core.models import AuditEntry
from apps.jobs.models import Checkpoint, Job, JobAttempt, JobEvent, MetricSeries
from tests.api.conftest import fields_of
from tests.api.test_jobs_submit import row_counts
from tests.jobs.helpers import follow, submit

pytestmark = pytest.mark.django_db

URL = "/api/v1/jobs/"


def names(response) -> list[str]:
    assert response.status_code == 200, response.content
    return [row["name"] for row in response.json()["results"]]


def insert(cast, count: int, **values) -> list[Job]:
    first = Job.objects.count()
    return Job.objects.bulk_create(
        Job(
            **{
                "project": cast.project,
                "cluster": cast.cluster,
                "submitted_by": cast.mina,
                "name": f"job {first + n}",
                "kind": "test",
                "script": "x",
                "state": "completed",
                **values,
            }
        )
        for n in range(count)
    )


@pytest.fixture
def attempt(cast, tmp_path) -> JobAttempt:
    """An ended attempt with files in its folder."""
    (job,) = insert(cast, 1, name="with files")
    (tmp_path / "out").mkdir()
    (tmp_path / "stdout.log").write_bytes(b"line one\nline two\n\xff\x00\x1b[31mred\n")
    (tmp_path / "out" / "model.npz").write_bytes(b"weights")
    (tmp_path / "link").symlink_to("/etc/passwd")
    return JobAttempt.objects.create(
        job=job,
        cluster=cast.cluster,
        number=1,
        token="t-1",
        state="completed",
        folder=str(tmp_path),
        stdout_path=str(tmp_path / "stdout.log"),
        stderr_path=str(tmp_path / "stderr.log"),
    )


# -- the list ---------------------------------------------------------------------------------------------------------


def test_the_schema_says_what_the_answers_hold(mina, cast, attempt):
    assert list(JOB_COLUMNS) == list(JobOut().fields)
    assert list(mina.get(URL).json()["results"][0]) == list(JobOut().fields)
    assert list(mina.get(f"{URL}{attempt.job.public_id}/").json()) == list(JobDetailOut().fields)
    for view, shape in ((Attempts, AttemptOut), (Events, EventOut), (Checkpoints, CheckpointOut)):
        assert list(view.columns) == list(shape().fields)


def test_who_sees_which_jobs(cast, as_person):
    other = Project.objects.create(name="other")
    insert(cast, 1, name="of gpt")
    insert(cast, 1, name="of other", project=other, submitted_by=cast.rex)
    insert(cast, 1, name="of nobody", project=None, submitted_by=None)
    insert(cast, 1, name="sam's own", project=other, submitted_by=cast.sam)
    seen = {name: sorted(names(as_person(person).get(URL))) for name, person in cast.people().items()}
    assert seen == {
        "olga": ["of gpt"],
        "mina": ["of gpt"],
        "vic": ["of gpt"],
        "sam": ["sam's own"],
        "rex": ["of gpt", "of nobody", "of other", "sam's own"],
    }


def test_filters(cast, as_person):
    other = Project.objects.create(name="other")
    rex = as_person(cast.rex)
    old = datetime(2026, 1, 1, tzinfo=UTC)
    insert(cast, 1, name="alpha one", state="running", kind="training", tags=["x"])
    insert(cast, 1, name="alpha two", state="failed", created_at=old)
    insert(cast, 1, name="beta", state="queued", project=other, submitted_by=cast.olga)

    def found(query: str) -> list[str]:
        return sorted(names(rex.get(f"{URL}?{query}")))

    assert found("state=running") == ["alpha one"]
    assert found("state=running,queued") == ["alpha one", "beta"]
    assert found("state=waiting") == ["beta"]
    assert found("kind=training") == ["alpha one"]
    assert found("project=other") == ["beta"]
    assert found("person=mina") == ["alpha one", "alpha two"]
    assert found("cluster=local&q=ALPHA") == ["alpha one", "alpha two"]
    assert found("tag=x") == ["alpha one"]
    assert found(f"q={Job.objects.get(name='beta').public_id}") == ["beta"]
    assert found("until=2026-02-01T00:00:00Z") == ["alpha two"]
    assert found("since=2026-02-01T00:00:00Z") == ["alpha one", "beta"]
    assert found("q=nothing") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("state=sleeping", "state"),
        ("kind=party", "kind"),
        ("since=yesterday", "since"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=many", "limit"),
        ("cursor=made-up", "cursor"),
        ("cursor=", "cursor"),
        ("sate=running", "sate"),
        ("q=%00", "q"),
        ("q=" + "x" * 300, "q"),
    ],
)
def test_a_query_that_is_none_names_its_parameter(mina, query, field):
    response = mina.get(f"{URL}?{query}")
    assert response.status_code == 400, response.content
    assert fields_of(response) == [field]


def test_a_thousand_rows_both_ways_while_rows_come(cast, mina):
    expected = [job.name for job in insert(cast, 1000)][::-1]
    forth, url = [], f"{URL}?limit=90"
    pages = 0
    while url:
        answer = mina.get(url).json()
        forth += [row["name"] for row in answer["results"]]
        last, url = answer, answer["next"]
        insert(cast, 3, name="newer")
        pages += 1
    assert (forth, pages) == (expected, 12)
    back, url = [row["name"] for row in last["results"]], last["previous"]
    while url:
        answer = mina.get(url).json()
        back = [row["name"] for row in answer["results"]] + back
        url = answer["previous"]
        if len(back) < 1100:
            insert(cast, 1, name="newer")
    assert [name for name in back if name != "newer"] == expected
    assert back[0] == "newer"
    assert mina.get(URL).json()["previous"] is None


def test_a_cursor_of_one_list_is_none_of_another(cast, mina, attempt):
    insert(cast, 2)
    JobEvent.objects.bulk_create(JobEvent(job=attempt.job, kind="x", text="x") for _ in range(2))
    cursor = mina.get(f"{URL}?limit=1").json()["next"].split("cursor=")[1].split("&")[0]
    assert fields_of(mina.get(f"{URL}{attempt.job.public_id}/events/?cursor={cursor}")) == ["cursor"]


def test_a_list_costs_the_same_whatever_is_in_it(cast, mina):
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert mina.get(f"{URL}?limit=200").status_code == 200
        return len(captured)

    mina.get(URL)
    insert(cast, 1)
    few = queries()
    insert(cast, 199)
    assert queries() == few <= 4


# -- one job ----------------------------------------------------------------------------------------------------------


def test_one_job_and_who_may_know_of_it(cast, as_person):
    job = submit(cast, environment={"A": "1"})
    url = f"{URL}{job.public_id}/"
    codes = {name: as_person(person).get(url).status_code for name, person in cast.people().items()}
    assert codes == {"olga": 200, "mina": 200, "vic": 200, "sam": 404, "rex": 200}
    shown = as_person(cast.mina).get(url).json()
    assert (shown["environment"], shown["script"]) == ({"A": "1"}, job.script)
    assert shown["may"] == {"cancel": True, "hold": True, "release": False, "rerun": True}
    assert shown["reserved_cpu_hours"] == "1.000000"
    assert as_person(cast.vic).get(url).json()["may"] == dict.fromkeys(("cancel", "hold", "release", "rerun"), False)
    missing = as_person(cast.sam).get(f"{URL}job-000000000000/").json()
    hidden = as_person(cast.sam).get(url).json()
    assert hidden["detail"] == missing["detail"].replace("job-000000000000", job.public_id)


@pytest.mark.parametrize("name", ["job-%00", "job-%ff", "..", "job-'--", "x" * 3000])
def test_an_id_that_is_none_is_not_found(mina, name):
    for rest in ("", "log/", "files/", "metrics/", "events/"):
        assert mina.get(f"{URL}{name}/{rest}").status_code == 404
    assert mina.post(f"{URL}{name}/cancel/").status_code == 404


def test_what_has_not_changed_is_not_sent_again(cast, mina):
    job = submit(cast)
    url = f"{URL}{job.public_id}/"
    first = mina.get(url)
    again = mina.get(url, headers={"If-None-Match": f'"other", {first["ETag"]}'})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
    mina.post(f"{url}hold/")
    changed = mina.get(url, headers={"If-None-Match": first["ETag"]})
    assert (changed.status_code, changed.json()["is_held"]) == (200, True)


# -- cancel, hold, release --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "hold", "release"])
def test_who_may_change_a_job(cast, as_person, verb):
    codes = {}
    for name, person in cast.people().items():
        job = submit(cast, hold=verb == "release")
        codes[name] = as_person(person).post(f"{URL}{job.public_id}/{verb}/").status_code
    assert codes == {"olga": 200, "mina": 200, "vic": 403, "sam": 404, "rex": 200}


def test_a_member_may_not_cancel_what_is_another_ones(cast, as_person):
    job = submit(cast, by=cast.olga)
    assert as_person(cast.mina).post(f"{URL}{job.public_id}/cancel/").status_code == 403


def test_the_life_of_a_held_job(cast, mina):
    url = f"{URL}{submit(cast).public_id}/"
    assert mina.post(f"{url}hold/").json()["is_held"] is True
    assert mina.post(f"{url}release/").json()["is_held"] is False
    cancelled = mina.post(f"{url}cancel/", {"reason": "wrong data"}).json()
    assert cancelled["state"] == "cancelled"
    assert "wrong data" in cancelled["reason"]
    for verb in ("cancel", "hold", "release"):
        response = mina.post(f"{url}{verb}/")
        assert (response.status_code, response.json()["type"]) == (409, "urn:switchyard:problem:conflict")
    assert list(AuditEntry.objects.order_by("id").values_list("verb", flat=True))[-3:] == [
        "job.hold",
        "job.release",
        "job.cancel",
    ]


@pytest.mark.parametrize("verb", ["cancel", "hold", "release"])
def test_a_dry_run_shows_what_would_be(cast, mina, verb):
    job = submit(cast, hold=verb == "release")
    before, updated_at = row_counts(), job.updated_at
    shown = mina.post(f"{URL}{job.public_id}/{verb}/?dry_run=true").json()
    assert (shown["state"] == "cancelled", shown["is_held"]) == (verb == "cancel", verb == "hold")
    job.refresh_from_db()
    assert (job.state, job.is_held, job.updated_at) == ("queued", verb == "release", updated_at)
    assert row_counts() == before


@pytest.mark.parametrize("verb", ["cancel", "hold", "release"])
def test_a_field_that_is_none_stops_the_change(cast, mina, verb):
    job = submit(cast, hold=verb == "release")
    assert fields_of(mina.post(f"{URL}{job.public_id}/{verb}/", {"raeson": "x"})) == ["raeson"]
    assert Job.objects.get(state="queued", is_held=verb == "release", wanted="") == job


def test_cancel_many(cast, mina, as_person):
    mine, hers = submit(cast), submit(cast, by=cast.olga)
    ended = insert(cast, 1)[0]
    ids = [mine.public_id, hers.public_id, ended.public_id, "job-nothing", mine.public_id]
    before = row_counts()
    dry = mina.post(f"{URL}cancel/?dry_run=true", {"ids": ids}).json()
    assert row_counts() == before
    mine.refresh_from_db()
    assert mine.state == "queued"
    answer = mina.post(f"{URL}cancel/", {"ids": ids, "reason": "tidy"}).json()
    assert answer == dry
    assert answer["cancelled"] == [mine.public_id]
    assert {row["id"] for row in answer["skipped"]} == {hers.public_id, ended.public_id, "job-nothing"}
    assert all(row["why"] for row in answer["skipped"])
    stranger = as_person(cast.sam).post(f"{URL}cancel/", {"ids": [hers.public_id]}).json()
    assert stranger["skipped"] == [{"id": hers.public_id, "why": f"There is no job {hers.public_id}."}]


@pytest.mark.parametrize("ids", [[], "job-1", None, [1.5, {}], ["x" * 41], ["x"] * 1001])
def test_cancel_many_wants_a_list_of_ids(mina, ids):
    response = mina.post(f"{URL}cancel/", {"ids": ids})
    assert response.status_code == 400
    assert fields_of(response)[0].startswith("ids")


# -- what belongs to a job --------------------------------------------------------------------------------------------

PARTS = ("attempts", "events", "checkpoints", "metrics", "files", "log", "files/download")


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_job_are_hidden_with_it(cast, as_person, attempt, part):
    url = f"{URL}{attempt.job.public_id}/{part}/"
    query = "?path=out/model.npz" if part == "files/download" else ""
    codes = {name: as_person(person).get(url + query).status_code for name, person in cast.people().items()}
    assert codes == {"olga": 200, "mina": 200, "vic": 200, "sam": 404, "rex": 200}
    assert fields_of(as_person(cast.mina).get(f"{url}?pth=x")) == ["pth"]


def test_attempts_events_and_checkpoints(cast, mina, attempt):
    url = f"{URL}{attempt.job.public_id}/"
    at = datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC)
    JobEvent.objects.create(job=attempt.job, attempt=attempt, at=at, kind="state.running", text="runs", actor_name="")
    JobEvent.objects.create(job=attempt.job, at=at, kind="hold.asked", text="held", actor_name="mina")
    checkpoint = Checkpoint.objects.create(job=attempt.job, attempt=attempt, path="c.npz", step=7, at=at)
    assert mina.get(f"{url}events/").json()["results"] == [
        {"at": "2026-03-01T12:00:00.500000Z", "kind": "hold.asked", "text": "held", "actor": "mina", "attempt": None},
        {"at": "2026-03-01T12:00:00.500000Z", "kind": "state.running", "text": "runs", "actor": "", "attempt": 1},
    ]
    assert mina.get(f"{url}checkpoints/").json()["results"] == [
        {"id": checkpoint.pk, "path": "c.npz", "step": 7, "at": "2026-03-01T12:00:00.500000Z", "attempt": 1}
    ]
    (shown,) = mina.get(f"{url}attempts/").json()["results"]
    assert (shown["number"], shown["state"], shown["nodes"]) == (1, "completed", [])


def test_metrics_as_columns(mina, attempt):
    MetricSeries.objects.create(
        attempt=attempt, name="loss", count=2, last_step=2, last_value=1.5, data={"steps": [1, 2], "values": [4.5, 1.5]}
    )
    MetricSeries.objects.create(attempt=attempt, name="speed", count=0, data={})
    url = f"{URL}{attempt.job.public_id}/metrics/"
    both = mina.get(url)
    assert [series["name"] for series in both.json()["series"]] == ["loss", "speed"]
    (loss,) = mina.get(f"{url}?name=loss").json()["series"]
    assert loss == {
        "name": "loss", "count": 2, "last_step": 2, "last_value": 1.5, "steps": [1, 2], "values": [4.5, 1.5]
    }  # fmt: skip
    assert mina.get(f"{url}?name=none").json()["series"] == []
    assert mina.get(url, headers={"If-None-Match": both["ETag"]}).status_code == 304
    assert mina.get(f"{url}?attempt=2").status_code == 404
    assert fields_of(mina.get(f"{url}?attempt=x")) == ["attempt"]


def test_a_job_that_waits_has_no_files_yet(cast, mina):
    url = f"{URL}{submit(cast).public_id}/"
    log = mina.get(f"{url}log/")
    assert (log.status_code, log.content, log["Job-Final"]) == (200, b"", "false")
    assert mina.get(f"{url}metrics/").json()["series"] == []
    assert mina.get(f"{url}files/").json()["entries"] == []
    assert mina.get(f"{url}files/download/?path=x").status_code == 404
    assert mina.get(f"{url}log/?attempt=1").status_code == 404
    mina.post(f"{url}cancel/")
    assert mina.get(f"{url}log/")["Job-Final"] == "true"


LOG = b"line one\nline two\n\xff\x00\x1b[31mred\n"


def test_the_log_comes_as_it_is(mina, attempt):
    url = f"{URL}{attempt.job.public_id}/log/"
    whole = mina.get(url)
    assert (whole.content, whole["Content-Type"]) == (LOG, "text/plain; charset=utf-8")
    assert whole["X-Content-Type-Options"] == "nosniff"
    assert (whole["Log-Start"], whole["Log-End"], whole["Log-Size"]) == ("0", str(len(LOG)), str(len(LOG)))
    assert whole["Job-Final"] == "true"
    part = mina.get(f"{url}?offset=5&limit=3")
    assert (part.content, part["Log-Start"], part["Log-End"]) == (b"one", "5", "8")
    assert mina.get(f"{url}?offset=-4").content == LOG[-4:]
    for offset in (9999, 2**62):
        beyond = mina.get(f"{url}?offset={offset}")
        assert (beyond.status_code, beyond.content) == (200, b"")
    assert mina.get(f"{url}?stream=stderr").content == b""


@pytest.mark.parametrize(
    ("header", "content", "content_range"),
    [
        ("bytes=0-3", LOG[:4], f"bytes 0-3/{len(LOG)}"),
        ("bytes=5-", LOG[5:], f"bytes 5-{len(LOG) - 1}/{len(LOG)}"),
        ("bytes=-4", LOG[-4:], f"bytes {len(LOG) - 4}-{len(LOG) - 1}/{len(LOG)}"),
        ("bytes=0-999999", LOG, f"bytes 0-{len(LOG) - 1}/{len(LOG)}"),
        ("bytes=9999-", None, f"bytes */{len(LOG)}"),
        ("bytes=-0", None, f"bytes */{len(LOG)}"),
    ],
)
def test_the_log_by_ranges(mina, attempt, header, content, content_range):
    response = mina.get(f"{URL}{attempt.job.public_id}/log/", headers={"Range": header})
    assert response["Content-Range"] == content_range
    assert response.status_code == (416 if content is None else 206)
    if content is not None:
        assert response.content == content


@pytest.mark.parametrize("header", ["bytes=-", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes=" + "9" * 99])
def test_a_range_that_is_none_is_passed_over(mina, attempt, header):
    response = mina.get(f"{URL}{attempt.job.public_id}/log/", headers={"Range": header})
    assert (response.status_code, response.content) == (200, LOG)


@pytest.mark.parametrize(
    ("query", "field"),
    [("stream=stdin", "stream"), ("offset=x", "offset"), ("limit=0", "limit"), ("limit=99999999", "limit"),
     ("offset=99999999999999999999", "offset")],
)  # fmt: skip
def test_a_log_query_that_is_none(mina, attempt, query, field):
    assert fields_of(mina.get(f"{URL}{attempt.job.public_id}/log/?{query}")) == [field]


def test_a_large_log_is_never_read_whole(mina, attempt):
    with Path(attempt.stdout_path).open("wb") as file:
        file.seek(2**30)
        file.write(b"the end")
    response = mina.get(f"{URL}{attempt.job.public_id}/log/?offset=-7")
    assert (response.content, response["Log-Size"]) == (b"the end", str(2**30 + 7))
    assert len(mina.get(f"{URL}{attempt.job.public_id}/log/").content) == 256 * 1024
    ranged = mina.get(f"{URL}{attempt.job.public_id}/log/", headers={"Range": "bytes=0-"})
    assert len(ranged.content) == 1024 * 1024


def test_files_are_listed_and_fetched(mina, attempt):
    url = f"{URL}{attempt.job.public_id}/files/"
    shown = mina.get(url).json()
    assert [(row["name"], row["is_folder"], row["size_bytes"]) for row in shown["entries"]] == [
        ("out", True, None),
        ("stdout.log", False, len(LOG)),
    ]
    assert mina.get(f"{url}?path=out").json()["entries"][0]["path"] == "out/model.npz"
    file = mina.get(f"{url}download/?path=out/model.npz")
    assert b"".join(file.streaming_content) == b"weights"
    assert file["Content-Disposition"] == 'attachment; filename="model.npz"'
    assert file["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize(
    "where", ["..", "../..", "/etc", "link", "nothing", "out/../../x", "%00", "out/model.npz/x", ""]
)
def test_no_path_leads_out(mina, attempt, where):
    url = f"{URL}{attempt.job.public_id}/files/"
    assert mina.get(f"{url}download/?path={where}").status_code == (400 if where == "%00" else 404)
    if where:
        assert mina.get(f"{url}?path={where}").status_code == (400 if where == "%00" else 404)


@pytest.mark.django_db(transaction=True)
def test_a_real_job_from_its_submit_to_its_log(cast, as_person, body):
    mina = as_person(cast.mina)
    script = 'echo hello; echo \'{"step": 1, "name": "loss", "value": 2.5}\' >> "$SWITCHYARD_METRICS"'
    public_id = mina.post(URL, body(script=script)).json()["id"]
    follow(Job.objects.get(public_id=public_id))
    url = f"{URL}{public_id}/"
    shown = mina.get(url).json()
    assert (shown["state"], shown["exit_code"], shown["attempt_count"]) == ("completed", 0, 1)
    assert isinstance(shown["cpu_hours"], str)
    log = mina.get(f"{url}log/")
    assert (log.content, log["Job-Final"]) == (b"hello\n", "true")
    assert mina.get(f"{url}metrics/").json()["series"][0]["values"] == [2.5]
    kinds = [event["kind"] for event in mina.get(f"{url}events/").json()["results"]][::-1]
    assert kinds[0] == "submitted"
    assert kinds[-1] == "state.completed"


def test_who_leaves_a_project_sees_its_jobs_no_more(cast, as_person):
    insert(cast, 1, submitted_by=cast.olga)
    vic = as_person(cast.vic)
    assert len(names(vic.get(URL))) == 1
    Membership.objects.get(user=cast.vic, role=Role.VIEWER).delete()
    assert names(vic.get(URL)) == []


def test_times_before_the_year_can_be_asked_for(cast, mina):
    insert(cast, 1, created_at=datetime.now(UTC) - timedelta(days=4000))
    assert len(names(mina.get(f"{URL}?until=2020-01-01T00:00:00%2B02:00"))) == 1


def test_the_parts_of_what_one_sees_are_all_of_it(cast):
    from apps.jobs.listing import MAX_PARTS, visible_parts
    from apps.jobs.rights import visible_jobs

    projects = [Project.objects.create(name=f"p{n}") for n in range(MAX_PARTS + 2)]
    for project in (cast.project, *projects):
        insert(cast, 1, project=project)
        insert(cast, 1, project=project, submitted_by=cast.sam)
    insert(cast, 1, project=None, submitted_by=None)
    Membership.objects.bulk_create(Membership(project=p, user=cast.vic, role=Role.VIEWER) for p in projects)
    Membership.objects.create(project=projects[0], user=cast.sam, role=Role.MEMBER)
    for person in cast.people().values():
        parts = {pk for part in visible_parts(person) for pk in part.values_list("pk", flat=True)}
        assert parts == set(visible_jobs(person).values_list("pk", flat=True))

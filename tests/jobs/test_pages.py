"""Pages of jobs, through their door."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from apps.accounts.models import Allocation
from apps.jobs.models import Checkpoint, Job, JobAttempt, JobEvent, MetricSeries
from apps.jobs.states import JobState
from tests.jobs.helpers import follow, submit

pytestmark = pytest.mark.django_db


def text_of(answer) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def form_data(client, path: str = "/jobs/new/?kind=test", **changes: str) -> dict[str, str]:
    form = client.get(path).context["form"]
    data = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    return {"project": "gpt", "cluster": "local", "name": "a job", "script": "echo hello"} | data | changes


@pytest.fixture
def as_mina(client, cast):
    client.force_login(cast.mina)
    return client


# -- submitting


def test_a_submitted_form_becomes_a_job_and_leads_to_its_page(as_mina, cast):
    data = form_data(
        as_mina,
        time_limit="1:30:00",
        memory="512M",
        environment="A=1\nB=x=y",
        tags="one two",
        partition="local",
    )
    answer = as_mina.post("/jobs/new/", data)
    job = Job.objects.get()
    assert answer["Location"] == f"/jobs/{job.public_id}/"
    assert (job.time_limit_s, job.memory_bytes_per_node) == (5400, 512 * 2**20)
    assert (job.environment, job.tags, job.script) == (
        {"A": "1", "B": "x=y"},
        ["one", "two"],
        "#!/bin/bash\necho hello\n",
    )
    assert (job.submitted_by, job.project, job.state) == (cast.mina, cast.project, JobState.QUEUED)


def test_the_same_form_sent_twice_makes_one_job(as_mina, cast):
    data = form_data(as_mina)
    places = [as_mina.post("/jobs/new/", data)["Location"] for _ in range(2)]
    assert places[0] == places[1]
    assert Job.objects.count() == 1


BAD = [
    ("name", "", "Name", "required"),
    ("name", "two\nlines", "Name", "one line"),
    ("name", "x" * 500, "Name", "500 characters"),
    ("name", "a\u202eb", "Name", "reading direction"),
    ("script", "", "Script", "required"),
    ("script", "echo \0", "Script", "ull character"),
    ("script", "x" * 5_000_000, "Script", "1 MiB is the limit"),
    ("environment", "1A=x", "Environment", "not a variable"),
    ("environment", "A B=x", "Environment", "not a variable"),
    ("environment", "JUST_A_NAME", "Environment", "has no"),
    ("environment", "LD_PRELOAD=/tmp/x.so", "Environment", "cannot be set by a job"),
    ("environment", "SWITCHYARD_METRICS=/etc/passwd", "Environment", "cannot be set by a job"),
    ("nodes", "0", "Nodes", "out of range"),
    ("nodes", "-1", "Nodes", "greater than or equal to 0"),
    ("nodes", "2", "Nodes", "the limit of partition local is 1"),
    ("nodes", "many", "Nodes", "whole number"),
    ("nodes", "9" * 30, "Nodes", "less than or equal"),
    ("cpus_per_node", "0", "CPUs per node", "out of range"),
    ("cpus_per_node", "3", "CPUs per node", "the limit of partition local is 2"),
    ("cpus_per_node", "1.5", "CPUs per node", "whole number"),
    ("memory", "lots", "Memory per node", "16G or 512M"),
    ("memory", "1K", "Memory per node", "out of range"),
    ("memory", "9G", "Memory per node", "the limit of partition local is 8 GiB"),
    ("time_limit", "soon", "Time limit", "not a duration"),
    ("time_limit", "0", "Time limit", "out of range"),
    ("time_limit", "8-00:00:00", "Time limit", "the limit of partition local is 7 d"),
    ("partition", "nowhere", "Partition", "There is no partition"),
    ("partition", "a;b", "Partition", "letters, digits"),
    ("working_dir", "relative", "Working folder", "starting with /"),
    ("working_dir", "/tmp/../etc", "Working folder", "without .."),
    ("working_dir", "/etc", "Working folder", "not open to jobs"),
    ("max_retries", "11", "Retries", "out of range"),
    ("tags", "#no", "Tags", "is no tag"),
    ("kind", "mining", "Kind", "not one of the available choices"),
    ("project", "secret", "Project", "not one of the available choices"),
    ("parent_checkpoint", "99999", "Parent checkpoint", "not one of the available choices"),
]


@pytest.mark.parametrize(("field", "value", "label", "says"), BAD, ids=[f"{b[0]}-{n}" for n, b in enumerate(BAD)])
def test_bad_input_is_told_beside_its_field_and_nothing_typed_is_lost(as_mina, cast, field, value, label, says):
    data = form_data(as_mina, script="echo kept") | {field: value}
    answer = as_mina.post("/jobs/new/", data)
    assert answer.status_code == 422
    errors = answer.context["form"].errors
    assert list(errors) == [field]
    assert says in " ".join(errors[field])
    assert answer.context["form"][field].label == label
    if field != "script":
        assert "echo kept" in answer.content.decode()
    assert Job.objects.count() == 0
    assert Allocation.objects.get(unit="cpu_hours").reserved == 0


@pytest.mark.parametrize("name", ["#SBATCH --nodes=9", 'it\'s "quoted" $(reboot) `id`', "🚀 rocket", "x" * 200])
def test_odd_names_are_names(as_mina, cast, name):
    as_mina.post("/jobs/new/", form_data(as_mina, name=name))
    job = follow(Job.objects.get())
    assert (job.name, job.state) == (name, JobState.COMPLETED)
    page = as_mina.get(f"/jobs/{job.public_id}/").content.decode()
    assert "<title>" in page


def test_windows_line_ends_run(as_mina, cast):
    as_mina.post("/jobs/new/", form_data(as_mina, script="#!/bin/sh\r\nexit 0\r\n"))
    job = follow(Job.objects.get())
    assert (job.state, job.script) == (JobState.COMPLETED, "#!/bin/sh\nexit 0\n")


def test_nothing_of_a_name_or_a_log_is_markup(as_mina, cast):
    evil = "<script>alert(1)</script>"
    job = follow(submit(cast, f"echo '{evil}'", name=evil, tags=("a",)))
    for path in ("/jobs/", f"/jobs/{job.public_id}/", "/", f"/jobs/new/?from={job.public_id}"):
        assert evil not in as_mina.get(path).content.decode(), path


def test_a_working_folder_must_lie_in_the_roots_also_after_its_links(as_mina, cast, settings, tmp_path):
    from dataclasses import replace

    root = tmp_path / "work"
    root.mkdir()
    (root / "out").symlink_to("/etc")
    settings.SWITCHYARD = replace(settings.SWITCHYARD, work_roots=[root])
    for folder in ("/etc", str(root / "out"), str(tmp_path / "workshop")):
        answer = as_mina.post("/jobs/new/", form_data(as_mina, working_dir=folder))
        assert "must lie in" in " ".join(answer.context["form"].errors["working_dir"])
    assert as_mina.post("/jobs/new/", form_data(as_mina, working_dir=str(root))).status_code == 302


def test_too_few_hours_are_said_before_and_after_the_button(as_mina, cast):
    Allocation.objects.filter(unit="cpu_hours").update(granted=1)
    data = form_data(as_mina, time_limit="1:00:00", cpus_per_node="2")
    says = "This needs 2.00 CPU-hours and"
    assert says in text_of(as_mina.post("/jobs/new/preview/", data))
    answer = as_mina.post("/jobs/new/", data)
    assert answer.status_code == 422
    assert says in text_of(answer)
    assert Job.objects.count() == 0


def test_the_preview_shows_the_exact_script_and_what_it_needs_and_stores_nothing(as_mina, cast):
    answer = as_mina.post("/jobs/new/preview/", form_data(as_mina, time_limit="2:00:00", cpus_per_node="2"))
    shown = text_of(answer)
    assert "#!/bin/bash echo hello" in shown
    assert "4 CPU-hours" in shown
    assert "10,000 CPU-hours" in shown
    assert (Job.objects.count(), Allocation.objects.get(unit="cpu_hours").reserved) == (0, 0)


def test_running_again_starts_from_the_old_job(as_mina, cast):
    old = submit(cast, "echo one", name="old", environment={"A": "1"}, time_limit_s=90, cpus_per_node=2, tags=("t",))
    form = as_mina.get(f"/jobs/new/?from={old.public_id}").context["form"]
    shown = {name: form[name].value() for name in ("name", "environment", "time_limit", "cpus_per_node", "tags")}
    assert shown == {"name": "old", "environment": "A=1", "time_limit": "00:01:30", "cpus_per_node": 2, "tags": "t"}
    as_mina.post("/jobs/new/", form_data(as_mina, f"/jobs/new/?from={old.public_id}"))
    copy = Job.objects.exclude(pk=old.pk).get()
    assert (copy.copied_from, copy.script, copy.environment) == (old, old.script, {"A": "1"})


def test_a_viewer_and_a_stranger_cannot_submit(client, cast):
    for person in (cast.vic, cast.sam):
        client.force_login(person)
        assert "no member of a project" in text_of(client.get("/jobs/new/"))
        answer = client.post(
            "/jobs/new/", {"project": "gpt", "cluster": "local", "name": "x", "script": "x", "key": "k"}
        )
        assert answer.status_code == 422
    assert Job.objects.count() == 0


# -- one job


def test_a_job_page_tells_the_state_in_a_sentence_and_why_it_failed_in_a_line(as_mina, cast):
    job = follow(submit(cast, "echo 'no such file: data.bin' >&2; exit 3"))
    shown = text_of(as_mina.get(f"/jobs/{job.public_id}/"))
    assert "Failed after" in shown
    assert "Why: exit code 3; last words: no such file: data.bin" in shown


def test_a_job_of_somebody_else_is_not_there(client, cast):
    job = submit(cast)
    client.force_login(cast.sam)
    for path in ("", "log/", "files/", "chart.json"):
        assert client.get(f"/jobs/{job.public_id}/{path}").status_code == 404
    for verb in ("cancel", "hold", "release"):
        assert client.post(f"/jobs/{job.public_id}/{verb}/").status_code == 404
    job.refresh_from_db()
    assert job.state == JobState.QUEUED


def test_a_viewer_looks_and_does_not_touch(client, cast):
    job = submit(cast)
    client.force_login(cast.vic)
    assert "Cancel" not in text_of(client.get(f"/jobs/{job.public_id}/"))
    assert client.post(f"/jobs/{job.public_id}/cancel/").status_code == 403


def test_an_unchanged_fragment_is_not_sent_again_and_a_final_one_asks_no_more(as_mina, cast):
    job = follow(submit(cast))
    url = f"/jobs/{job.public_id}/"
    first = as_mina.get(url, headers={"HX-Request": "true"})
    assert b"hx-get" not in first.content
    again = as_mina.get(url, headers={"HX-Request": "true", "If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_job_page_costs_the_same_whatever_its_history(as_mina, cast, django_assert_num_queries):
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    job = submit(cast)
    attempt = JobAttempt.objects.create(job=job, cluster=cast.cluster, number=1, token="t1")
    with CaptureQueriesContext(connection) as bare:
        as_mina.get(f"/jobs/{job.public_id}/")
    JobEvent.objects.bulk_create(JobEvent(job=job, kind="x", text=f"event {n}") for n in range(2000))
    for n in range(2, 40):
        attempt = JobAttempt.objects.create(job=job, cluster=cast.cluster, number=n, token=f"t{n}")
    Checkpoint.objects.bulk_create(Checkpoint(job=job, attempt=attempt, path=f"c{n}", step=n) for n in range(500))
    MetricSeries.objects.bulk_create(
        MetricSeries(attempt=attempt, name=f"m{n}", data={"steps": [1], "values": [1.0], "count": 1}) for n in range(50)
    )
    with CaptureQueriesContext(connection) as full:
        as_mina.get(f"/jobs/{job.public_id}/")
    assert len(full) == len(bare) <= 14


def test_metrics_are_drawn_and_can_be_taken_away(as_mina, cast):
    script = (
        'for n in 1 2 3; do echo \'{"step": \'$n\', "name": "loss", "value": \'$n\'.5}\' >> $SWITCHYARD_METRICS; done'
    )
    job = follow(submit(cast, script))
    figure = as_mina.get(f"/jobs/{job.public_id}/chart.json?name=loss")
    assert figure["X-Final"] == "1"
    (line,) = figure.json()["data"]
    import base64

    import numpy as np

    assert np.frombuffer(base64.b64decode(line["y"]["bdata"]), "<f8").tolist() == [1.5, 2.5, 3.5]
    csv = as_mina.get(f"/jobs/{job.public_id}/chart.json?name=loss&format=csv").content.decode()
    assert csv.splitlines() == ["metric,step,value", "loss,1,1.5", "loss,2,2.5", "loss,3,3.5"]
    assert "3.5" in text_of(as_mina.get(f"/jobs/{job.public_id}/chart.json?name=loss&format=table"))


# -- log and files


def test_the_log_is_told_from_where_one_was(as_mina, cast):
    job = follow(submit(cast, "echo one; echo two; printf 'no end'"))
    first = as_mina.get(f"/jobs/{job.public_id}/log/").json()
    assert [spans[0][1] for spans, _ in first["lines"]] == ["one", "two", "no end"]
    assert (first["final"], first["size"]) == (True, 14)
    rest = as_mina.get(f"/jobs/{job.public_id}/log/?offset=4").json()
    assert [spans[0][1] for spans, _ in rest["lines"]] == ["two", "no end"]
    whole = b"".join(as_mina.get(f"/jobs/{job.public_id}/log/?download=1"))
    assert whole == b"one\ntwo\nno end"


def test_a_gigabyte_of_log_is_read_at_its_end_only(as_mina, cast):
    job = follow(submit(cast))
    attempt = job.attempts.get()
    with Path(attempt.stdout_path).open("wb") as file:
        file.truncate(2**30)
        file.seek(2**30)
        file.write(b"\nthe last line\n")
    answer = as_mina.get(f"/jobs/{job.public_id}/log/")
    assert answer.json()["lines"][-1][0] == [["", "the last line"]]
    assert len(answer.content) < 500_000


def test_a_job_that_makes_its_log_a_link_shows_its_page_and_nothing_of_what_the_link_leads_to(as_mina, cast):
    job = follow(submit(cast, 'cd "$SWITCHYARD_FOLDER"; rm stdout.log; ln -s /etc/passwd stdout.log'))
    answer = as_mina.get(f"/jobs/{job.public_id}/")
    assert answer.status_code == 200
    assert "The log cannot be read" in text_of(answer)
    assert "root:" not in answer.content.decode()
    assert as_mina.get(f"/jobs/{job.public_id}/log/").json()["lines"] == []


@pytest.mark.parametrize("query", ["stream=secret", "offset=-5", "offset=x", "attempt=7", "offset=" + "9" * 30])
def test_a_log_that_is_not_there(as_mina, cast, query):
    job = follow(submit(cast))
    assert as_mina.get(f"/jobs/{job.public_id}/log/?{query}").status_code in {400, 404}


def test_files_are_listed_and_fetched_and_nothing_beside_them(as_mina, cast):
    job = follow(submit(cast, 'mkdir out; echo "<script>" > out/page.html; ln -s /etc/passwd link'))
    listing = text_of(as_mina.get(f"/jobs/{job.public_id}/files/"))
    assert "out/" in listing
    assert "link" not in listing.replace("links", "")
    answer = as_mina.get(f"/jobs/{job.public_id}/files/?path=out/page.html&download=1")
    assert answer["Content-Disposition"].startswith("attachment")
    assert (answer["X-Content-Type-Options"], answer["Content-Type"]) == ("nosniff", "application/octet-stream")
    assert b"".join(answer) == b"<script>\n"
    for path in ("../../spool", "link", "/etc/passwd", "out/../../x", "nothing"):
        assert as_mina.get(f"/jobs/{job.public_id}/files/?download=1", {"path": path}).status_code == 404, path


# -- the list


def test_filters_find_what_they_say(as_mina, cast):
    follow(submit(cast, name="alpha run", tags=("nightly",)))
    follow(submit(cast, "exit 1", name="beta run"))
    submit(cast, name="gamma", kind="training", by=cast.olga, hold=True)

    def names(query: str) -> list[str]:
        return [job.name for job in as_mina.get(f"/jobs/?{query}").context["page"].rows]

    assert names("") == ["gamma", "beta run", "alpha run"]
    assert names("state=failed") == ["beta run"]
    assert names("state=waiting") == ["gamma"]
    assert names("state=failed,completed") == ["beta run", "alpha run"]
    assert names("q=RUN") == ["beta run", "alpha run"]
    assert names("kind=training") == ["gamma"]
    assert names("person=olga") == ["gamma"]
    assert names("tag=nightly") == ["alpha run"]
    assert names("project=gpt&cluster=local&state=ended") == ["beta run", "alpha run"]
    assert names("project=none") == []
    job = Job.objects.get(name="gamma")
    assert names(f"q={job.public_id}") == ["gamma"]


def test_a_filter_that_is_none_is_said_and_the_page_stays(as_mina, cast):
    submit(cast)
    answer = as_mina.get("/jobs/?state=sleeping&kind=x")
    assert answer.status_code == 200
    assert "is no state" in text_of(answer)
    assert len(answer.context["page"].rows) == 1
    assert as_mina.get("/jobs/?after=job-doesnotexist").status_code == 200


def test_pages_go_on_by_key_both_ways_and_miss_none(as_mina, cast):
    Job.objects.bulk_create(
        Job(name=f"n{n}", project=cast.project, cluster=cast.cluster, kind="test", script="x", submitted_by=cast.mina)
        for n in range(120)
    )
    seen, url = [], "/jobs/"
    while True:
        page = as_mina.get(url).context["page"]
        seen += [job.name for job in page.rows]
        if page.next is None:
            break
        url = f"/jobs/?after={page.next}"
    assert seen == [f"n{n}" for n in reversed(range(120))]
    back = as_mina.get(f"/jobs/?before={page.previous}").context["page"]
    assert [job.name for job in back.rows] == [f"n{n}" for n in reversed(range(20, 70))]


def test_the_list_costs_the_same_for_one_and_for_fifty(as_mina, cast, django_assert_max_num_queries):
    submit(cast)
    with django_assert_max_num_queries(9):
        as_mina.get("/jobs/")
    for n in range(49):
        submit(cast, name=f"n{n}")
    with django_assert_max_num_queries(9):
        as_mina.get("/jobs/")


def test_many_are_cancelled_at_once_and_those_that_cannot_be_are_told(as_mina, cast):
    mine, others = submit(cast), submit(cast, by=cast.olga)
    answer = as_mina.post("/jobs/cancel/", {"id": [mine.public_id, others.public_id, "job-none"]}, follow=True)
    shown = text_of(answer)
    assert "1 of 3 jobs are being cancelled" in shown
    assert "Only" in shown
    assert "There is no job job-none" in shown
    mine.refresh_from_db()
    others.refresh_from_db()
    assert (mine.state, others.state) == (JobState.CANCELLED, JobState.QUEUED)


def test_a_list_can_be_taken_away_as_a_table_that_no_spreadsheet_runs(as_mina, cast):
    import csv
    import io

    follow(submit(cast, name="=cmd()", cpus_per_node=2))
    submit(cast, name="other", by=cast.olga)
    answer = as_mina.get("/jobs/?person=mina&format=csv")
    (row,) = csv.DictReader(io.StringIO(answer.content.decode()))
    assert (row["name"], row["state"], row["cpus_per_node"], row["project"]) == ("'=cmd()", "completed", "2", "gpt")
    assert row["ended_at"] >= row["started_at"] >= row["submitted_at"]

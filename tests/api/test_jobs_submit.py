"""Submitting through the API: who may, what is refused by name, once for each key, all or nothing, and dry runs."""

from __future__ import annotations

import threading
from decimal import Decimal

import pytest
from django.apps import apps
from django.db import connection, connections
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.accounts.models import Allocation, Project
from apps.api.job_shapes import JobIn
from apps.core.models import AuditEntry
from apps.jobs.models import Job, JobEvent, SubmissionKey
from tests.api.conftest import ApiClient, fields_of
from tests.jobs.helpers import submit

pytestmark = pytest.mark.django_db

URL = "/api/v1/jobs/"
BULK = "/api/v1/jobs/bulk/"


def row_counts() -> dict[str, int]:
    return {model._meta.label: model.objects.count() for model in apps.get_models() if model._meta.label != "sessions"}


def test_a_job_is_stored_when_the_answer_comes(mina, body, cast):
    response = mina.post(
        URL, body(environment={"A": "1"}, tags=["x", "y"], cpus_per_node=2, memory_bytes_per_node=2**30)
    )
    assert response.status_code == 201, response.content
    shown = response.json()
    job = Job.objects.get()
    assert (job.project, job.cluster, job.submitted_by) == (cast.project, cast.cluster, cast.mina)
    assert (job.script, job.environment, job.tags) == ("#!/bin/bash\necho hello\n", {"A": "1"}, ["x", "y"])
    assert shown["id"] == job.public_id
    assert shown["state"] == "queued"
    assert (shown["project"], shown["cluster"], shown["submitted_by"]) == ("gpt", "local", "mina")
    assert (shown["script"], shown["tags"], shown["cpus_per_node"]) == (job.script, ["x", "y"], 2)
    assert shown["created_at"].endswith("Z")
    assert shown["gpu_hours"] is None
    assert Allocation.objects.get(unit="cpu_hours").reserved == Decimal("2")
    audit = AuditEntry.objects.get(verb="job.submit")
    assert (audit.actor, audit.via, audit.target_id) == (cast.mina, "api", job.public_id)


@pytest.mark.parametrize(("name", "status"), [("olga", 201), ("mina", 201), ("vic", 403), ("sam", 400), ("rex", 403)])
def test_who_may_submit(cast, as_person, body, name, status):
    response = as_person(getattr(cast, name)).post(URL, body())
    assert response.status_code == status, response.content
    assert Job.objects.count() == (1 if status == 201 else 0)
    if name == "sam":  # who may not see the project is told the same as when there is none
        missing = as_person(cast.sam).post(URL, body(project="nothing")).json()["errors"]
        assert response.json()["errors"] == [{**missing[0], "message": missing[0]["message"].replace("nothing", "gpt")}]


def test_a_held_job_waits(mina, body):
    assert mina.post(URL, body(hold=True)).json()["is_held"] is True


# -- refused by name --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"project": "nothing"}, "project"),
        ({"cluster": "nothing"}, "cluster"),
        ({"project": ""}, "project"),
        ({"project": "a\0b"}, "project"),
        ({"name": ""}, "name"),
        ({"name": None}, "name"),
        ({"name": ["a"]}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"name": "x" * 500}, "name"),
        ({"name": "nul\0"}, "name"),
        ({"kind": "party"}, "kind"),
        ({"script": ""}, "script"),
        ({"script": "echo \0"}, "script"),
        ({"script": "#" * 5 * 2**20}, "script"),
        ({"environment": ["A"]}, "environment"),
        ({"environment": {"1A": "x"}}, "environment"),
        ({"environment": {"A B": "x"}}, "environment"),
        ({"environment": {"": "x"}}, "environment"),
        ({"environment": {"LD_PRELOAD": "x"}}, "environment"),
        ({"environment": {"A": "\x1b["}}, "environment"),
        ({"environment": {"A": {"b": 1}}}, "environment.A"),
        ({"working_dir": "/etc"}, "working_dir"),
        ({"working_dir": "relative"}, "working_dir"),
        ({"working_dir": "/srv/../etc"}, "working_dir"),
        ({"working_dir": "/a\0b"}, "working_dir"),
        ({"partition": "nothing"}, "partition"),
        ({"partition": "a b"}, "partition"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": -1}, "nodes"),
        ({"nodes": 2}, "nodes"),
        ({"nodes": 10**30}, "nodes"),
        ({"nodes": "many"}, "nodes"),
        ({"nodes": 1.5}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"nodes": None}, "nodes"),
        ({"cpus_per_node": 0}, "cpus_per_node"),
        ({"cpus_per_node": 3}, "cpus_per_node"),
        ({"accelerators_per_node": -1}, "accelerators_per_node"),
        ({"memory_bytes_per_node": 0}, "memory_bytes_per_node"),
        ({"memory_bytes_per_node": 2**60}, "memory_bytes_per_node"),
        ({"memory_bytes_per_node": "16G"}, "memory_bytes_per_node"),
        ({"time_limit_s": 0}, "time_limit_s"),
        ({"time_limit_s": 8 * 86400}, "time_limit_s"),
        ({"time_limit_s": "2:30:00"}, "time_limit_s"),
        ({"parent_checkpoint": 12345}, "parent_checkpoint"),
        ({"parent_checkpoint": 2**70}, "parent_checkpoint"),
        ({"max_retries": 99}, "max_retries"),
        ({"tags": ["two words"]}, "tags"),
        ({"tags": "one"}, "tags"),
        ({"tags": ["x"] * 21}, "tags"),
        ({"hold": "perhaps"}, "hold"),
        ({"time_limit": "2:30:00"}, "time_limit"),
        ({"state": "completed"}, "state"),
    ],
)
def test_bad_input_names_its_field(mina, body, values, field):
    before = row_counts()
    response = mina.post(URL, body(**values))
    assert response.status_code == 400, response.content
    assert fields_of(response) == [field]
    assert row_counts() == before


def test_all_that_is_wrong_is_named_at_once(mina, body):
    response = mina.post(URL, body(nodes=0, cpus_per_node=0, tags=["a b"]))
    assert sorted(fields_of(response)) == ["cpus_per_node", "nodes", "tags"]
    assert sorted(fields_of(mina.post(URL, {}))) == ["cluster", "kind", "name", "project", "script"]


@pytest.mark.parametrize("name", ["#SBATCH --wrap=evil", 'it\'s "quoted" $(id) `id`', "🚀 emoji", "Zürich — 東京"])
def test_odd_names_are_only_names(mina, body, name):
    assert mina.post(URL, body(name=name)).json()["name"] == name


def test_windows_line_ends_are_mended(mina, body):
    assert mina.post(URL, body(script="echo a\r\necho b\r\n")).json()["script"] == "#!/bin/bash\necho a\necho b\n"


def test_closed_doors_say_so(mina, body, cast):
    Project.objects.update(is_active=False)
    assert fields_of(mina.post(URL, body())) == ["project"]
    Project.objects.update(is_active=True)
    cast.cluster.is_enabled = False
    cast.cluster.save()
    assert fields_of(mina.post(URL, body())) == ["cluster"]


def test_hours_that_are_not_there_are_a_conflict_in_words(mina, body):
    Allocation.objects.filter(unit="cpu_hours").update(granted=Decimal("0.5"))
    before = row_counts()
    response = mina.post(URL, body())
    assert response.status_code == 409
    assert response.json()["type"] == "urn:switchyard:problem:over-limit"
    assert "CPU-hours" in response.json()["detail"]
    assert row_counts() == before


# -- once for each key ------------------------------------------------------------------------------------------------


def test_the_same_key_and_body_is_the_same_job(mina, body):
    headers = {"Idempotency-Key": "run-1"}
    first = mina.post(URL, body(), headers=headers)
    again = mina.post(URL, body(), headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert not first.has_header("Idempotency-Replayed")
    assert again["Idempotency-Replayed"] == "true"
    assert again.json() == first.json()
    assert Job.objects.count() == 1
    assert Allocation.objects.get(unit="cpu_hours").reserved == Decimal("1")


def test_the_same_key_with_another_body_is_a_conflict(mina, body):
    mina.post(URL, body(), headers={"Idempotency-Key": "run-1"})
    response = mina.post(URL, body(name="another"), headers={"Idempotency-Key": "run-1"})
    assert response.status_code == 409
    assert response.json()["type"] == "urn:switchyard:problem:conflict"
    assert Job.objects.count() == 1


def test_a_key_belongs_to_one_person(cast, mina, as_person, body):
    mina.post(URL, body(), headers={"Idempotency-Key": "run-1"})
    assert as_person(cast.olga).post(URL, body(), headers={"Idempotency-Key": "run-1"}).status_code == 201
    assert Job.objects.count() == 2


def test_a_refused_submission_does_not_use_up_its_key(mina, body):
    assert mina.post(URL, body(partition="nothing"), headers={"Idempotency-Key": "run-1"}).status_code == 400
    assert mina.post(URL, body(), headers={"Idempotency-Key": "run-1"}).status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 201, "caf\u00e9", "tab\there"])
def test_a_key_that_is_none_is_refused_by_name(mina, body, key):
    assert fields_of(mina.post(URL, body(), headers={"Idempotency-Key": key})) == ["Idempotency-Key"]
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_ten_at_once_with_one_key_make_one_job(cast, as_person, body):
    token = as_person(cast.mina).defaults["HTTP_AUTHORIZATION"]
    answers = []

    def send() -> None:
        client = ApiClient(authorization=token)
        answers.append(client.post(URL, body(), headers={"Idempotency-Key": "button"}))
        connections.close_all()

    threads = [threading.Thread(target=send) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert Job.objects.count() == 1
    assert Allocation.objects.get(unit="cpu_hours").reserved == Decimal("1")


# -- many at once -----------------------------------------------------------------------------------------------------


def bulk(body, *specs, **more):
    common = body()
    place = {name: common.pop(name) for name in ("project", "cluster")}
    return {**place, "jobs": [{**common, **spec} for spec in specs], **more}


def test_many_jobs_in_one_go(mina, body):
    response = mina.post(BULK, bulk(body, *({"name": f"job {n}"} for n in range(100))))
    assert response.status_code == 201, response.content
    jobs = response.json()["jobs"]
    assert [job["name"] for job in jobs] == [f"job {n}" for n in range(100)]
    assert "script" not in jobs[0]
    assert Job.objects.count() == JobEvent.objects.count() == 100
    assert Allocation.objects.get(unit="cpu_hours").reserved == Decimal("100")


@pytest.mark.parametrize(
    ("spec", "field"), [({"nodes": 0}, "jobs.2.nodes"), ({"nodes": "x"}, "jobs.2.nodes"), ({"nods": 1}, "jobs.2.nods"),
                        ({"partition": "nothing"}, "jobs.2.partition"), ({"project": "gpt"}, "jobs.2.project")]
)  # fmt: skip
def test_one_wrong_job_refuses_all_of_them(mina, body, spec, field):
    before = row_counts()
    response = mina.post(BULK, bulk(body, {}, {}, spec, {}))
    assert response.status_code == 400
    assert fields_of(response) == [field]
    assert row_counts() == before


def test_hours_for_some_of_them_are_hours_for_none(mina, body):
    Allocation.objects.filter(unit="cpu_hours").update(granted=Decimal("2.5"))
    before = row_counts()
    assert mina.post(BULK, bulk(body, {}, {}, {})).status_code == 409
    assert row_counts() == before
    assert Allocation.objects.get(unit="cpu_hours").reserved == 0
    assert mina.post(BULK, bulk(body, {}, {})).status_code == 201


@pytest.mark.parametrize("jobs", [[], "x", None, {}, [1], [None]])
def test_a_list_of_jobs_that_is_none(mina, body, jobs):
    response = mina.post(BULK, {**bulk(body), "jobs": jobs})
    assert response.status_code == 400
    assert fields_of(response)[0].startswith("jobs")


def test_a_thousand_and_one_is_too_many(mina, body):
    response = mina.post(BULK, bulk(body, *({} for _ in range(1001))))
    assert fields_of(response) == ["jobs"]
    assert not Job.objects.exists()


def test_many_with_a_key(mina, body):
    headers = {"Idempotency-Key": "sweep-1"}
    first = mina.post(BULK, bulk(body, {}, {"name": "b"}), headers=headers)
    again = mina.post(BULK, bulk(body, {}, {"name": "b"}), headers=headers)
    other = mina.post(BULK, bulk(body, {}), headers=headers)
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.json() == first.json()
    assert Job.objects.count() == 2


# -- dry runs ---------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_and_changes_nothing(mina, body):
    before = row_counts()
    response = mina.post(f"{URL}?dry_run=true", body(cpus_per_node=2, script="echo a\r\n"))
    assert response.status_code == 200, response.content
    shown = response.json()
    assert shown["script"] == "#!/bin/bash\necho a\n"
    assert Decimal(shown["cpu_hours"]) == 2
    assert Decimal(shown["cpu_hours_left"]) == 10000
    assert isinstance(shown["gpu_hours"], str)
    assert row_counts() == before


def test_a_dry_run_refuses_what_a_real_one_would(mina, body, cast, as_person):
    assert fields_of(mina.post(f"{URL}?dry_run=1", body(nodes=2))) == ["nodes"]
    assert as_person(cast.vic).post(f"{URL}?dry_run=1", body()).status_code == 403
    Allocation.objects.filter(unit="cpu_hours").update(granted=Decimal("0.5"))
    assert mina.post(f"{URL}?dry_run=1", body()).status_code == 409


def test_a_dry_run_of_many(mina, body):
    before = row_counts()
    response = mina.post(f"{BULK}?dry_run=true", bulk(body, {}, {}), headers={"Idempotency-Key": "later"})
    assert response.status_code == 200
    assert len(response.json()["jobs"]) == 2
    assert row_counts() == before
    assert not SubmissionKey.objects.exists()


@pytest.mark.parametrize("value", ["yes", "", "TRUE!", "2"])
def test_a_dry_run_is_never_guessed(mina, body, value):
    assert fields_of(mina.post(f"{URL}?dry_run={value}", body())) == ["dry_run"]
    assert not Job.objects.exists()


def test_a_parameter_with_a_typing_error_is_refused(mina, body):
    assert fields_of(mina.post(f"{URL}?dryrun=true", body())) == ["dryrun"]
    assert not Job.objects.exists()


# -- again ------------------------------------------------------------------------------------------------------------


def test_a_rerun_is_a_copy_with_what_was_changed(mina, cast):
    job = submit(cast, "echo old", name="first", tags=("x",), cpus_per_node=2)
    same = mina.post(f"{URL}{job.public_id}/rerun/")
    assert same.status_code == 201, same.content
    assert (same.json()["script"], same.json()["tags"], same.json()["cpus_per_node"]) == (job.script, ["x"], 2)
    assert same.json()["copied_from"] == job.public_id
    changed = mina.post(f"{URL}{job.public_id}/rerun/", {"name": "second", "cpus_per_node": 1, "hold": True}).json()
    assert (changed["name"], changed["cpus_per_node"], changed["is_held"]) == ("second", 1, True)
    assert changed["script"] == job.script


def test_who_may_rerun(cast, as_person):
    job = submit(cast)
    url = f"{URL}{job.public_id}/rerun/"
    codes = {name: as_person(person).post(url).status_code for name, person in cast.people().items()}
    assert codes == {"olga": 201, "mina": 201, "vic": 403, "sam": 404, "rex": 403}


def test_a_rerun_is_checked_like_any_job(mina, cast):
    job = submit(cast)
    before = row_counts()
    assert fields_of(mina.post(f"{URL}{job.public_id}/rerun/", {"nodes": 0})) == ["nodes"]
    assert fields_of(mina.post(f"{URL}{job.public_id}/rerun/", {"parent": 1})) == ["parent"]
    assert mina.post(f"{URL}{job.public_id}/rerun/?dry_run=true", {"name": "b"}).json()["dry_run"] is True
    assert row_counts() == before


# -- anything at all --------------------------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
NAMES = sorted(JobIn().fields)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=3), where=st.sampled_from([URL, BULK]))
def test_no_body_makes_it_fail(mina, body, changes, where):
    content = body(**changes)
    if where == BULK:
        content = bulk(lambda: content, {})
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT one_example")
    response = mina.post(where, content)
    assert response.status_code in {201, 400, 403, 409}, (content, response.content)
    if response.status_code == 400:
        assert fields_of(response)
    with connection.cursor() as cursor:
        cursor.execute("ROLLBACK TO SAVEPOINT one_example")

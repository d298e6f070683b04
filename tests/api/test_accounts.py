"""People, projects, hours, tokens, the inbox and the audit trail over REST."""

from __future__ import annotations

from decimal import Decimal

import pytest

from apps.accounts.models import Allocation, ApiToken, Membership, Notice, Project, User
from apps.core.models import AuditEntry
from tests.api.conftest import fields_of
from tests.jobs.helpers import submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def rex(cast, as_person):
    return as_person(cast.rex)


@pytest.fixture
def olga(cast, as_person):
    return as_person(cast.olga)


@pytest.fixture
def sam(cast, as_person):
    return as_person(cast.sam)


def put(client, path: str, data: dict):
    return client.put(path, data, content_type="application/json")


def patch(client, path: str, data: dict):
    return client.patch(path, data, content_type="application/json")


def test_a_project_is_made_led_granted_and_read(rex, olga, cast):
    made = rex.post("/api/v1/projects/", {"name": "vision", "lead": "olga"})
    assert (made.status_code, made.json()["name"]) == (201, "vision")
    granted = rex.post("/api/v1/projects/vision/allocations/", {"unit": "gpu_hours", "hours": "12.5"})
    assert (granted.status_code, granted.json()["granted"]) == (201, "12.500000")
    assert put(olga, "/api/v1/projects/vision/members/sam/", {"role": "member"}).json()["role"] == "member"
    read = olga.get("/api/v1/projects/vision/").json()
    assert (read["gpu_hours_left"], read["cpu_hours_left"]) == ("12.500000", "0")
    members = olga.get("/api/v1/projects/vision/members/").json()["results"]
    assert [(m["person"], m["role"]) for m in members] == [("olga", "lead"), ("sam", "member")]
    assert olga.delete("/api/v1/projects/vision/members/sam/").status_code == 204
    assert patch(olga, "/api/v1/projects/vision/", {"is_active": False}).json()["is_active"] is False
    project = Project.objects.get(name="vision")
    assert project.title == ""  # what was not named stayed


def test_who_is_not_in_a_project_does_not_know_of_it(sam, cast):
    assert sam.get("/api/v1/projects/").json()["results"] == []
    for path in ("", "members/", "allocations/"):
        assert sam.get(f"/api/v1/projects/gpt/{path}").status_code == 404
    assert put(sam, "/api/v1/projects/gpt/members/sam/", {"role": "lead"}).status_code == 404


def test_a_member_sees_and_does_not_change(mina, cast):
    assert mina.get("/api/v1/projects/gpt/").status_code == 200
    assert put(mina, "/api/v1/projects/gpt/members/sam/", {"role": "member"}).status_code == 403
    assert patch(mina, "/api/v1/projects/gpt/", {"title": "x"}).status_code == 403
    assert mina.post("/api/v1/projects/gpt/allocations/", {"unit": "gpu_hours", "hours": "1"}).status_code == 403
    assert mina.post("/api/v1/projects/", {"name": "mine"}).status_code == 403
    for path in ("people", "audit"):
        assert mina.get(f"/api/v1/{path}/").status_code == 403


def test_dry_runs_keep_nothing(rex, cast):
    before = [model.objects.count() for model in (User, Project, Allocation, AuditEntry, ApiToken)]
    for path, data in (
        ("projects", {"name": "dry"}),
        ("people", {"username": "dry"}),
        ("tokens", {"name": "dry"}),
        ("projects/gpt/allocations", {"unit": "gpu_hours", "hours": "1"}),
    ):
        answer = rex.post(f"/api/v1/{path}/?dry_run=true", data)
        assert answer.status_code == 200, answer.content
    assert [model.objects.count() for model in (User, Project, Allocation, AuditEntry, ApiToken)] == before


@pytest.mark.parametrize(
    ("path", "data", "field"),
    [
        ("projects", {"name": "a b"}, "name"),
        ("projects", {"name": "gpt"}, "name"),
        ("projects", {"name": "x", "lead": "nobody"}, "lead"),
        ("projects", {"name": "x", "colour": "red"}, "colour"),
        ("people", {"username": "mina"}, "username"),
        ("people", {"username": "x y"}, "username"),
        ("people", {"username": "x", "email": "nope"}, "email"),
        ("tokens", {"name": "x", "days": 0}, "days"),
        ("tokens", {"name": ""}, "name"),
        ("projects/gpt/allocations", {"unit": "minutes", "hours": "1"}, "unit"),
        ("projects/gpt/allocations", {"unit": "gpu_hours", "hours": "-1"}, "hours"),
        ("projects/gpt/allocations", {"unit": "gpu_hours", "hours": "NaN"}, "hours"),
        (
            "projects/gpt/allocations",
            {"unit": "gpu_hours", "hours": "1", "ends_at": "2001-01-01T00:00:00Z"},
            "ends_at",
        ),
    ],
)
def test_bad_input_names_its_field(rex, cast, path, data, field):
    answer = rex.post(f"/api/v1/{path}/", data)
    assert answer.status_code == 400
    assert fields_of(answer) == [field]


def test_people_are_added_changed_and_given_passwords(rex, cast, client):
    added = rex.post("/api/v1/people/", {"username": "nina"})
    assert added["Cache-Control"] == "no-store"
    nina = added.json()
    assert client.post("/sign-in/", {"username": "nina", "password": nina["one_time_password"]}).status_code == 302
    changed = patch(rex, f"/api/v1/people/{nina['public_id']}/", {"email": "nina@example.org"}).json()
    assert (changed["email"], changed["is_active"]) == ("nina@example.org", True)
    again = rex.post(f"/api/v1/people/{nina['public_id']}/password/").json()["one_time_password"]
    assert User.objects.get(username="nina").check_password(again)
    assert rex.get("/api/v1/people/?username=nina").json()["results"][0]["username"] == "nina"
    assert not AuditEntry.objects.filter(after__icontains=again).exists()


def test_the_last_operator_stays_one(rex, cast):
    answer = patch(rex, f"/api/v1/people/{cast.rex.public_id}/", {"is_operator": False})
    assert answer.status_code == 409


def test_tokens_are_ones_own_and_shown_once(mina, olga, cast):
    made = mina.post("/api/v1/tokens/", {"name": "ci", "days": 5})
    token = made.json()["token"]
    assert made["Cache-Control"] == "no-store"
    listed = mina.get("/api/v1/tokens/").json()["results"]
    assert "token" not in listed[0]
    key = made.json()["key"]
    assert key in {one["key"] for one in listed}
    assert olga.delete(f"/api/v1/tokens/{key}/").status_code == 404
    assert mina.delete(f"/api/v1/tokens/{key}/").status_code == 204
    assert mina.get("/api/v1/me/", headers={"authorization": f"Bearer {token}"}).status_code == 401
    assert mina.get("/api/v1/me/").json()["username"] == "mina"


def test_the_inbox_is_read(mina, cast):
    one = Notice.objects.create(user=cast.mina, key="a", level="info", text="a")
    Notice.objects.create(user=cast.mina, key="b", level="bad", text="b")
    Notice.objects.create(user=cast.olga, key="c", level="bad", text="c")
    assert [n["text"] for n in mina.get("/api/v1/notices/").json()["results"]] == ["b", "a"]
    assert mina.post("/api/v1/notices/read/", {"ids": [one.pk]}).json() == {"read": 1}
    assert mina.post("/api/v1/notices/read/").json() == {"read": 1}
    assert Notice.objects.filter(read_at__isnull=True).count() == 1


def test_the_audit_trail_is_found_by_what_it_was_done_to(rex, cast):
    job = submit(cast)
    found = rex.get(f"/api/v1/audit/?target={job.public_id}").json()["results"]
    assert [(e["verb"], e["person"], e["target_name"]) for e in found] == [("job.submit", "mina", "a job")]


def test_hours_in_the_api_are_those_of_the_rows(olga, cast):
    submit(cast, cpus_per_node=2)
    rows = {a["unit"]: a for a in olga.get("/api/v1/projects/gpt/allocations/").json()["results"]}
    assert rows["cpu_hours"]["reserved"] == "2.000000"
    assert Decimal(olga.get("/api/v1/projects/gpt/").json()["cpu_hours_left"]) == 9998
    assert Membership.objects.filter(project=cast.project).count() == 3

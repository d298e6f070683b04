"""People, projects, tokens and the audit trail, through their pages."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from apps.accounts.models import Allocation, ApiToken, Membership, Notice, Project, User
from apps.core.models import AuditEntry
from apps.jobs.actions import cancel_job
from tests.cast import PASSWORD
from tests.jobs.helpers import submit

pytestmark = pytest.mark.django_db


def text_of(answer) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


@pytest.fixture
def as_rex(client, cast):
    client.force_login(cast.rex)
    return client


def test_a_new_person_signs_in_once_and_must_choose_a_password(as_rex, cast, client):
    answer = as_rex.post("/people/new/", {"username": "nina", "email": "nina@example.org"})
    password = re.search(r'id="one-time">([^<]+)<', answer.content.decode())[1]
    assert answer["Cache-Control"] == "no-store"
    client.logout()
    assert client.post("/sign-in/", {"username": "nina", "password": password}).status_code == 302
    assert client.get("/")["Location"] == "/account/password/"
    weak = client.post("/account/password/", {"old": password, "new": "12345", "again": "12345"})
    assert "too short" in text_of(weak)
    done = client.post(
        "/account/password/", {"old": password, "new": "tall grey walls 7", "again": "tall grey walls 7"}
    )
    assert done["Location"] == "/"
    assert client.get("/").status_code == 200  # this session goes on
    assert User.objects.get(username="nina").check_password("tall grey walls 7")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"username": "mina"}, "There is a person named"),
        ({"username": "MINA"}, "There is a person named"),
        ({"username": "a b"}, "Enter a valid username"),
        ({"username": "nina", "email": "nobody"}, "Enter a valid email"),
        ({"username": ""}, "This field is required"),
    ],
)
def test_a_person_that_cannot_be_added(as_rex, typed, says):
    before = User.objects.count()
    assert says in text_of(as_rex.post("/people/new/", typed))
    assert User.objects.count() == before


def test_the_last_operator_cannot_be_demoted_or_closed(as_rex, cast):
    url = f"/people/{cast.rex.public_id}/"
    for change in ({"is_active": "on"}, {"is_operator": "on"}):
        assert "only active operator" in text_of(as_rex.post(url, change))
    cast.rex.refresh_from_db()
    assert cast.rex.is_operator
    assert cast.rex.is_active


def test_who_is_closed_has_no_session_and_no_token(as_rex, cast, client):
    ApiToken.objects.create(user=cast.mina)
    answer = as_rex.post(f"/people/{cast.mina.public_id}/", {"first_name": "Mina"})
    assert answer.status_code == 302
    assert ApiToken.objects.count() == 0
    client.logout()
    refused = client.post("/sign-in/", {"username": "mina", "password": PASSWORD})
    assert refused.status_code == 200
    assert "do not belong together" in text_of(refused)


def test_ten_wrong_passwords_close_the_door(client, cast):
    for _ in range(10):
        answer = client.post("/sign-in/", {"username": "mina", "password": "wrong"})
    assert answer.status_code == 429
    assert "Too many tries" in text_of(client.post("/sign-in/", {"username": "mina", "password": PASSWORD}))
    # Somebody else from the same place is not locked out.
    assert client.post("/sign-in/", {"username": "olga", "password": PASSWORD}).status_code == 302


def test_signing_in_does_not_lead_to_another_site(client, cast):
    data = {"username": "mina", "password": PASSWORD, "next": "https://evil.example/"}
    assert client.post("/sign-in/?next=https://evil.example/", data)["Location"] == "/"


def test_an_operator_makes_a_project_with_a_lead_who_adds_members(as_rex, cast, client):
    as_rex.post("/projects/new/", {"name": "vision", "lead": "olga", "is_metered": "on"})
    as_rex.post("/projects/vision/grant/", {"unit": "gpu_hours", "hours": "250.5"})
    project = Project.objects.get(name="vision")
    assert Allocation.objects.get(project=project).granted == Decimal("250.5")
    client.force_login(cast.olga)
    client.post("/projects/vision/members/", {"person": "sam", "role": "member"})
    assert Membership.objects.get(project=project, user=cast.sam).role == "member"
    client.post("/projects/vision/members/", {"person": "sam", "role": "viewer"})
    assert Membership.objects.get(project=project, user=cast.sam).role == "viewer"
    assert "no project" not in text_of(client.get("/projects/vision/"))
    unknown = client.post("/projects/vision/members/", {"person": "nobody", "role": "viewer"})
    assert "There is nobody named" in text_of(unknown)


def test_the_last_lead_stays(client, cast):
    client.force_login(cast.olga)
    client.post(f"/projects/gpt/members/{cast.olga.public_id}/remove/")
    assert "only lead" in text_of(client.post("/projects/gpt/members/", {"person": "olga", "role": "viewer"}))
    assert Membership.objects.get(project=cast.project, user=cast.olga).role == "lead"


@pytest.mark.parametrize("hours", ["0", "-5", "1e12", "NaN", "many", ""])
def test_a_grant_that_is_none(as_rex, cast, hours):
    before = Allocation.objects.count()
    assert as_rex.post("/projects/gpt/grant/", {"unit": "gpu_hours", "hours": hours}).status_code == 422
    assert Allocation.objects.count() == before


def test_a_closed_project_takes_no_jobs(client, cast):
    client.force_login(cast.olga)
    client.post("/projects/gpt/edit/", {"title": "t", "description": ""})
    answer = client.get("/jobs/new/")
    assert "no member of a project" in text_of(answer)


def test_a_token_is_shown_once_works_and_is_revoked(client, cast):
    client.force_login(cast.mina)
    answer = client.post("/account/tokens/", {"name": "nightly", "days": "30"})
    token = re.search(r'id="new-token">([^<]+)<', answer.content.decode())[1]
    assert token.startswith("swy_")
    assert token not in client.get("/account/tokens/").content.decode()
    assert not AuditEntry.objects.filter(after__icontains=token).exists()
    row = ApiToken.objects.get()
    assert token not in str(vars(row))
    script = type(client)(headers={"Authorization": f"Bearer {token}"})
    assert script.get("/api/v1/jobs/").status_code == 200
    client.post(f"/account/tokens/{row.token_key}/revoke/")
    assert script.get("/api/v1/jobs/").status_code == 401


def test_a_token_of_somebody_else_cannot_be_revoked(client, cast):
    row, _ = ApiToken.objects.create(user=cast.olga)
    client.force_login(cast.mina)
    assert client.post(f"/account/tokens/{row.token_key}/revoke/").status_code == 404
    assert ApiToken.objects.count() == 1


def test_the_inbox_is_ones_own(client, cast):
    Notice.objects.create(user=cast.mina, key="k", level="bad", text="the job failed", link="/jobs/")
    Notice.objects.create(user=cast.olga, key="k", level="info", text="for olga")
    client.force_login(cast.mina)
    shown = text_of(client.get("/inbox/"))
    assert "the job failed" in shown
    assert "for olga" not in shown
    client.post("/inbox/")
    assert list(Notice.objects.filter(read_at__isnull=True).values_list("user__username", flat=True)) == ["olga"]


def test_every_action_leaves_a_row_that_operators_can_find(client, cast):
    client.force_login(cast.olga)
    client.post("/projects/gpt/members/", {"person": "sam", "role": "member"})
    job = submit(cast)
    cancel_job(job, by=cast.mina, reason="a test")
    client.force_login(cast.rex)
    shown = text_of(client.get("/audit/?person=olga"))
    assert "project.set_member" in shown
    assert "role: member" in shown
    assert "web, 127.0.0.1" in shown
    shown = text_of(client.get(f"/audit/?target={job.public_id}"))
    assert "job.cancel" in shown
    assert "reason: a test" in shown
    assert client.get("/audit/?after=x").status_code == 400


def test_audit_and_project_pages_cost_the_same_however_much_there_is(client, cast, django_assert_max_num_queries):
    client.force_login(cast.rex)
    AuditEntry.objects.bulk_create(
        AuditEntry(verb="x", actor_name="a", target_type="t", target_id=str(n), via="web") for n in range(300)
    )
    with django_assert_max_num_queries(5):
        client.get("/audit/")
    for n in range(30):
        user = User.objects.create_user(f"u{n}")
        Membership.objects.create(project=cast.project, user=user, role="member")
    with django_assert_max_num_queries(14):
        client.get("/projects/gpt/")

"""Who gets in, what a problem looks like, and that nothing is allowed that nobody allowed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import get_resolver, include, path
from django.utils import timezone
from rest_framework.response import Response

from apps.accounts.models import ApiToken
from apps.api.base import ApiViewSet
from apps.api.problems import STATUS
from apps.core import errors
from tests.api.conftest import ApiClient

pytestmark = pytest.mark.django_db


def assert_problem(response, status: int, kind: str) -> dict:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["type"] == f"urn:switchyard:problem:{kind}"
    assert body["title"] and body["detail"]
    assert body["instance"] == response.wsgi_request.path
    return body


# -- who gets in ------------------------------------------------------------------------------------------------------


def test_a_stranger_is_told_how_to_sign_in(cast):
    response = Client().get("/api/v1/jobs/")
    assert_problem(response, 401, "not-signed-in")
    assert response["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer swy_made-up", "Bearer a b", "Bearer \u00e9\u00ff", "Bearer " + "x" * 500]
)
def test_a_token_that_is_none_opens_nothing(cast, header):
    assert_problem(ApiClient(authorization=header).get("/api/v1/jobs/"), 401, "not-signed-in")


def test_a_token_works_until_it_expires_is_revoked_or_its_owner_leaves(cast, as_person):
    from apps.accounts.actions import revoke_token

    client = as_person(cast.mina)
    token = ApiToken.objects.get(user=cast.mina)
    assert client.get("/api/v1/jobs/").status_code == 200
    ApiToken.objects.update(expiry=timezone.now() - timedelta(seconds=1))
    assert client.get("/api/v1/jobs/").status_code == 401
    ApiToken.objects.update(expiry=timezone.now() + timedelta(days=1))
    cast.mina.is_active = False
    cast.mina.save()
    assert client.get("/api/v1/jobs/").status_code == 401
    cast.mina.is_active = True
    cast.mina.save()
    assert client.get("/api/v1/jobs/").status_code == 200
    revoke_token(cast.mina, token.token_key)
    assert client.get("/api/v1/jobs/").status_code == 401


def test_the_last_use_is_noted_at_most_once_a_minute(mina):
    mina.get("/api/v1/jobs/")
    first = ApiToken.objects.get().last_used_at
    assert first is not None
    mina.get("/api/v1/jobs/")
    assert ApiToken.objects.get().last_used_at == first
    ApiToken.objects.update(last_used_at=first - timedelta(seconds=61))
    mina.get("/api/v1/jobs/")
    assert ApiToken.objects.get().last_used_at > first


def test_a_session_works_too_and_then_needs_the_csrf_token(cast, body):
    client = Client(enforce_csrf_checks=True)
    client.force_login(cast.mina)
    assert client.get("/api/v1/jobs/").status_code == 200
    refused = client.post("/api/v1/jobs/", body(), content_type="application/json")
    assert "CSRF" in assert_problem(refused, 403, "not-allowed")["detail"]
    client.cookies["csrftoken"] = "a" * 32
    allowed = client.post("/api/v1/jobs/", body(), content_type="application/json", headers={"X-CSRFToken": "a" * 32})
    assert allowed.status_code == 201


def test_who_has_a_one_time_password_must_change_it_first(cast, mina):
    cast.mina.must_change_password = True
    cast.mina.save()
    assert_problem(mina.get("/api/v1/jobs/"), 403, "not-allowed")


# -- deny by default --------------------------------------------------------------------------------------------------


def viewsets():
    def walk(resolver):
        for entry in resolver.url_patterns:
            if hasattr(entry, "url_patterns"):
                yield from walk(entry)
            else:
                yield entry

    for entry in walk(next(r for r in get_resolver().url_patterns if getattr(r, "app_name", "") == "api")):
        if issubclass(getattr(entry.callback, "cls", object), ApiViewSet):
            yield entry


def test_every_action_of_every_endpoint_names_a_verb_of_the_table():
    from apps.core.permissions import ALLOWED

    seen = 0
    for entry in viewsets():
        for action in entry.callback.actions.values():
            seen += 1
            assert entry.callback.cls.verbs.get(action) in ALLOWED, f"{entry.name}: {action}"
    assert seen > 15


class Forgetful(ApiViewSet):
    verbs = {"remember": "job.view", "rule": "audit.view", "typo": "job.veiw"}

    def forget(self, request):
        return Response({})

    def rule(self, request):
        return Response({"ruled": True})

    def typo(self, request):
        return Response({})

    def fail(self, request, kind):
        raise {
            "invalid-input": errors.InvalidInput({"nodes": "too many"}),
            "not-allowed": errors.NotAllowed("no"),
            "not-found": errors.NotFound("no"),
            "conflict": errors.Conflict("no"),
            "over-limit": errors.OverLimit("no"),
            "unavailable": errors.Unavailable("no"),
            "database": OperationalError("server closed the connection"),
            "fault": ZeroDivisionError("secret detail"),
        }[kind]


class Failing(Forgetful):
    verbs = {"fail": "job.view"}


urlpatterns = [
    path("api/forget/", Forgetful.as_view({"get": "forget"})),
    path("api/typo/", Forgetful.as_view({"get": "typo"})),
    path("api/rule/", Forgetful.as_view({"get": "rule"})),
    path("api/fail/<str:kind>/", Failing.as_view({"get": "fail"})),
    path("", include("config.urls")),
]


@pytest.mark.urls(__name__)
def test_an_action_without_a_verb_is_allowed_to_nobody(cast, as_person):
    for person in cast.people().values():
        client = as_person(person)
        assert_problem(client.get("/api/forget/"), 403, "not-allowed")
        assert_problem(client.get("/api/typo/"), 403, "not-allowed")


@pytest.mark.urls(__name__)
def test_a_verb_of_the_site_is_decided_before_the_action(cast, as_person):
    assert as_person(cast.rex).get("/api/rule/").json() == {"ruled": True}
    assert "operators" in assert_problem(as_person(cast.olga).get("/api/rule/"), 403, "not-allowed")["detail"]


# -- problems ---------------------------------------------------------------------------------------------------------


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("kind", sorted(STATUS))
def test_each_kind_of_domain_error_is_a_problem(mina, kind):
    response = mina.get(f"/api/fail/{kind}/")
    body = assert_problem(response, STATUS[kind], kind)
    assert body.get("errors") == ([{"field": "nodes", "message": "too many"}] if kind == "invalid-input" else None)
    assert response.has_header("Retry-After") == (kind == "unavailable")


@pytest.mark.urls(__name__)
def test_a_database_that_does_not_answer_is_503(mina):
    response = mina.get("/api/fail/database/")
    assert "server closed" not in assert_problem(response, 503, "unavailable")["detail"]
    assert response["Retry-After"] == "5"


@pytest.mark.urls(__name__)
def test_a_fault_of_ours_says_nothing_of_its_inside(mina):
    assert "secret" not in str(assert_problem(mina.get("/api/fail/fault/"), 500, "error"))


def test_an_unknown_address_is_a_problem_with_a_hint(mina):
    assert_problem(mina.get("/api/v1/nothing/"), 404, "not-found")
    assert "/api/v1/jobs/" in assert_problem(mina.get("/api/v1/jobs"), 404, "not-found")["detail"]
    assert_problem(mina.post("/api/v1/jobs"), 404, "not-found")


def test_a_method_that_is_not_offered(mina):
    response = mina.put("/api/v1/jobs/", {}, content_type="application/json")
    assert_problem(response, 405, "method-not-allowed")
    assert set(response["Allow"].split(", ")) == {"GET", "POST", "HEAD"}
    assert_problem(mina.options("/api/v1/jobs/"), 405, "method-not-allowed")


@pytest.mark.parametrize(
    ("content", "content_type", "status", "kind"),
    [
        (b"{", "application/json", 400, "invalid-input"),
        (b'{"name": "\\ud800"}', "application/json", 400, "invalid-input"),
        (b'{"nodes": NaN}', "application/json", 400, "invalid-input"),
        (b"[" * 100_000, "application/json", 400, "invalid-input"),
        (b"\xff\xfe", "application/json", 400, "invalid-input"),
        (b"[1]", "application/json", 400, "invalid-input"),
        (b'"text"', "application/json", 400, "invalid-input"),
        (b"name=x", "application/x-www-form-urlencoded", 415, "unsupported-media-type"),
        (b"<job/>", "text/xml", 415, "unsupported-media-type"),
        (b" " * (12 * 2**20 + 1), "application/json", 413, "too-large"),
    ],
    ids=["torn", "surrogate", "nan", "nested", "latin", "list", "text", "form", "xml", "huge"],
)
def test_a_body_that_is_none(mina, content, content_type, status, kind):
    assert_problem(mina.post("/api/v1/jobs/", content, content_type), status, kind)


def test_what_the_asker_would_accept_does_not_matter(mina):
    response = mina.get("/api/v1/jobs/", headers={"Accept": "text/html"})
    assert response["Content-Type"] == "application/json"
    assert response["Cache-Control"] == "private, no-cache"

"""Every URL with every role: what is not declared is a failure, and what is not allowed is refused."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from apps.accounts.models import ApiToken
from apps.core.permissions import ALLOWED, OPERATOR, PERSON
from apps.inventory.models import Hall, Node, Rack, Region, Site
from apps.jobs.models import JobAttempt
from apps.web.middleware import OPEN_VIEWS
from tests.jobs.helpers import submit

SITE_VERBS = {verb for verb, roles in ALLOWED.items() if roles <= {PERSON, OPERATOR}}
# Signing in and out are Django's own views; everything else declares its verb.
FRAMEWORK_VIEWS = {"web:sign-in", "web:sign-out", "healthz"}


def patterns(resolver: URLResolver, namespace: str = "", prefix: str = "") -> list[tuple[str, URLPattern, str]]:
    found = []
    for one in resolver.url_patterns:
        route = prefix + str(one.pattern)
        if isinstance(one, URLResolver):
            inner = f"{namespace}{one.namespace}:" if one.namespace else namespace
            found += patterns(one, inner, route)
        else:
            found.append((f"{namespace}{one.name}", one, route))
    return found


def pages() -> list[tuple[str, URLPattern, str]]:
    return [p for p in patterns(get_resolver()) if p[0].startswith("web:") or p[0] == "healthz"]


@pytest.fixture
def things(cast: Any) -> dict[str, Any]:
    """One of everything a URL can name, all of project gpt."""
    job = submit(cast, hold=True)
    JobAttempt.objects.create(job=job, cluster=cast.cluster, number=1, token="t", folder="/nonexistent")
    site = Site.objects.create(region=Region.objects.create(name="r"), name="s")
    hall = Hall.objects.create(site=site, name="h")
    node = Node.objects.create(name="n1", cluster=cast.cluster, rack=Rack.objects.create(hall=hall, name="r1"))
    token, _ = ApiToken.objects.create(user=cast.mina)
    return {"job": job, "hall": hall, "node": node, "token": token}


def url_of(route: str, things: dict[str, Any], cast: Any) -> str:
    """The route with its parts filled in."""
    if route.startswith("projects/") and "<slug:name>" in route:
        route = route.replace("<slug:name>", "gpt").replace("<str:public_id>", cast.vic.public_id)
    return "/" + (
        route.replace("jobs/<str:public_id>", f"jobs/{things['job'].public_id}")
        .replace("people/<str:public_id>", f"people/{cast.vic.public_id}")
        .replace("clusters/<slug:name>", "clusters/local")
        .replace("halls/<int:pk>", f"halls/{things['hall'].pk}")
        .replace("nodes/<int:pk>", f"nodes/{things['node'].pk}")
        .replace("<slug:kind>/<int:pk>", f"hall/{things['hall'].pk}")
        .replace("<slug:kind>", "rack")
        .replace("<str:token_key>", things["token"].token_key)
    )


ROLES = {"olga": {"lead"}, "mina": {"member", "owner"}, "vic": {"viewer"}, "sam": set(), "rex": {"operator"}}


def test_every_page_declares_what_it_needs():
    undeclared = [
        name for name, pattern, _ in pages() if name not in FRAMEWORK_VIEWS and not hasattr(pattern.callback, "verb")
    ]
    assert undeclared == []
    assert {pattern.callback.verb for _, pattern, _ in pages() if hasattr(pattern.callback, "verb")} <= set(ALLOWED)


@pytest.mark.django_db
@pytest.mark.parametrize("person", list(ROLES))
def test_every_page_with_every_role(client, cast, things, person):
    client.force_login(getattr(cast, person))
    roles = ROLES[person] | {PERSON}
    for name, pattern, route in pages():
        verb = getattr(pattern.callback, "verb", None)
        if verb is None:
            continue
        url = url_of(route, things, cast)
        answer = client.get(url, {"name": "x"})
        if answer.status_code == 405:
            answer = client.post(url, {"id": things["job"].public_id})
        assert "<" not in url, url
        assert answer.status_code < 500, f"{person} {url}: {answer.status_code}"
        if verb in SITE_VERBS:
            expected_refusal = not roles & ALLOWED[verb]
            assert (answer.status_code == 403) == expected_refusal, f"{person} {name} {verb}: {answer.status_code}"
        elif person == "sam" and ("<str:public_id>" in route or "<slug:name>" in route):
            assert answer.status_code == 404, f"{person} {name}: {answer.status_code}"
        elif "<" in route and not roles & ALLOWED[verb]:
            assert answer.status_code == 403, f"{person} {name} {verb}: {answer.status_code}"


@pytest.mark.django_db
def test_a_stranger_sees_the_sign_in_page_and_nothing_else(client, cast, things):
    for name, _, route in pages():
        url = url_of(route, things, cast)
        for answer in (client.get(url), client.post(url)):
            if name in OPEN_VIEWS:
                assert answer.status_code == 200, url
            else:
                assert answer.status_code == 302, f"{url}: {answer.status_code}"
                assert answer["Location"].startswith("/sign-in/"), url


@pytest.mark.django_db
def test_who_must_change_the_password_can_do_nothing_else(client, cast):
    cast.mina.must_change_password = True
    cast.mina.save()
    client.force_login(cast.mina)
    assert client.get("/jobs/")["Location"] == "/account/password/"
    assert client.get("/account/password/").status_code == 200

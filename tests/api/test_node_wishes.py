"""Draining and resuming nodes through the API, one and many."""

from __future__ import annotations

import pytest
from django.utils import timezone

from apps.core.models import AuditEntry
from apps.inventory.models import Node
from apps.jobs.node_control import carry_out_nodes
from apps.jobs.reconcile import poll_nodes
from tests.api.conftest import fields_of
from tests.api.test_base import assert_problem

pytestmark = pytest.mark.django_db


@pytest.fixture
def rex(cast, as_person):
    return as_person(cast.rex)


@pytest.fixture
def node(cast) -> Node:
    poll_nodes(cast.cluster.pk)
    return Node.objects.get()


def test_a_node_is_drained_and_resumed(rex, mina, cast, node):
    url = f"/api/v1/nodes/{node.pk}/"
    asked = rex.post(f"{url}drain/", {"reason": "fan is loud"})
    assert asked.status_code == 200, asked.content
    shown = asked.json()
    assert (shown["wanted"], shown["wanted_reason"], shown["wanted_by"]) == ("drain", "fan is loud", "rex")
    assert (shown["state"], shown["wanted_error"]) == ("idle", "")
    carry_out_nodes(cast.cluster.pk)
    shown = mina.get(url).json()
    assert (shown["wanted"], shown["state"], shown["reason"]) == ("", "drained", "fan is loud")
    assert "wanted_error" not in shown  # it may hold what only operators should see
    assert rex.post(f"{url}resume/").json()["wanted"] == "resume"
    carry_out_nodes(cast.cluster.pk)
    assert rex.get(url).json()["state"] == "idle"
    states = rex.get(f"{url}states/").json()["results"]
    assert [(one["state"], one["source"]) for one in states] == [("idle", "rex"), ("drained", "rex"), ("idle", "local")]


@pytest.mark.parametrize("person", ["olga", "mina", "vic", "sam"])
@pytest.mark.parametrize("where", ["", "one"])
@pytest.mark.parametrize("action", ["drain", "resume"])
def test_only_operators_may(cast, as_person, node, person, where, action):
    url = f"/api/v1/nodes/{f'{node.pk}/' if where else ''}{action}/"
    answer = as_person(getattr(cast, person)).post(url, {"reason": "why", "ids": [node.pk]})
    assert_problem(answer, 403, "not-allowed")
    assert not Node.objects.exclude(wanted="").exists()


@pytest.mark.parametrize("reason", [None, "", " ", "x" * 201, "two\nlines", 7 * [1], "\u202e"])
def test_a_drain_without_a_proper_reason_names_the_field(rex, node, reason):
    body = {} if reason is None else {"reason": reason}
    assert fields_of(rex.post(f"/api/v1/nodes/{node.pk}/drain/", body)) == ["reason"]
    assert fields_of(rex.post("/api/v1/nodes/drain/", {**body, "ids": [node.pk]})) == ["reason"]
    assert not Node.objects.exclude(wanted="").exists()


def test_a_dry_run_says_what_would_be_and_keeps_nothing(rex, cast, node):
    answer = rex.post(f"/api/v1/nodes/{node.pk}/drain/?dry_run=true", {"reason": "fan is loud"})
    assert (answer.status_code, answer.json()["wanted"]) == (200, "drain")
    many = rex.post("/api/v1/nodes/drain/?dry_run=true", {"ids": [node.pk], "reason": "fan is loud"})
    assert many.json() == {"asked": [node.pk], "skipped": []}
    conflict = rex.post(f"/api/v1/nodes/{node.pk}/resume/?dry_run=true")
    assert_problem(conflict, 409, "conflict")
    assert not Node.objects.exclude(wanted="").exists() and not AuditEntry.objects.filter(verb="node.drain").exists()


def test_what_cannot_be(rex, cast, node):
    planned = Node.objects.create(cluster=cast.cluster, name="planned")
    assert_problem(rex.post(f"/api/v1/nodes/{planned.pk}/drain/", {"reason": "why"}), 409, "conflict")
    assert_problem(rex.post("/api/v1/nodes/999999/drain/", {"reason": "why"}), 404, "not-found")
    assert_problem(rex.get(f"/api/v1/nodes/{node.pk}/drain/"), 405, "method-not-allowed")
    assert fields_of(rex.post(f"/api/v1/nodes/{node.pk}/drain/?force=true", {"reason": "why"})) == ["force"]
    assert fields_of(rex.post(f"/api/v1/nodes/{node.pk}/drain/", {"reason": "why", "now": True})) == ["now"]


def test_many_at_once(rex, cast):
    now = timezone.now()
    Node.objects.bulk_create(
        Node(cluster=cast.cluster, name=f"n{n:04}", state="idle", seen_at=now) for n in range(1001)
    )
    ids = list(Node.objects.order_by("name").values_list("pk", flat=True))
    assert fields_of(rex.post("/api/v1/nodes/drain/", {"ids": ids, "reason": "works"})) == ["ids"]
    assert fields_of(rex.post("/api/v1/nodes/drain/", {"ids": [], "reason": "works"})) == ["ids"]
    Node.objects.filter(pk=ids[0]).update(retired_at=now)
    unknown = max(ids) + 1
    answer = rex.post("/api/v1/nodes/drain/", {"ids": [*ids[:999], unknown], "reason": "works"}).json()
    assert answer["asked"] == ids[1:999]
    assert answer["skipped"] == [
        {"id": ids[0], "why": "n0000 is retired."},
        {"id": unknown, "why": "There is no such node."},
    ]
    assert Node.objects.filter(wanted="drain", wanted_reason="works").count() == 998
    assert AuditEntry.objects.filter(verb="node.drain", via="api", actor=cast.rex).count() == 998
    # Back again, before anybody has carried it out: what was not asked stays as it is.
    answer = rex.post("/api/v1/nodes/resume/", {"ids": ids[1:1001]}).json()
    assert len(answer["asked"]) == 998
    assert answer["skipped"][-1] == {"id": ids[1000], "why": "n1000 is in service; there is nothing to resume."}

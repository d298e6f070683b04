"""Draining and resuming nodes on the pages: the node's own, and several chosen in the list."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.inventory.models import Cluster, Node
from apps.jobs.models import JobAttempt
from apps.jobs.node_control import carry_out_nodes
from apps.jobs.reconcile import poll_nodes
from apps.jobs.states import JobState
from tests.jobs.helpers import submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def rex(client, cast):
    client.force_login(cast.rex)
    return client


@pytest.fixture
def node(cast) -> Node:
    poll_nodes(cast.cluster.pk)
    Cluster.objects.update(poll_succeeded_at=timezone.now())
    return Node.objects.get()


def text(response, status: int = 200) -> str:
    assert response.status_code == status, response.content[:2000]
    return " ".join(response.content.decode().split())


def runs_on(cast, *names: str) -> None:
    job = submit(cast, hold=True)
    JobAttempt.objects.create(
        job=job, cluster=cast.cluster, number=1, token=job.public_id, state=JobState.RUNNING, nodes=list(names)
    )


def test_an_operator_drains_and_resumes_a_node(rex, cast, node):
    url = f"/nodes/{node.pk}/"
    shown = text(rex.get(url))
    assert f'href="{url}drain/"' in shown and f'href="{url}resume/"' not in shown and "data-live" not in shown
    runs_on(cast, "node-1")
    runs_on(cast, "node-1", "node-2")
    runs_on(cast, "node-11")
    form = text(rex.get(f"{url}drain/", headers={"HX-Request": "true"}))
    assert "<html" not in form and "Drain node-1?" in form
    assert "2 jobs run there now, and run to their end." in form
    assert "<html" in text(rex.get(f"{url}drain/"))  # without a script it is a page
    shown = text(rex.post(f"{url}drain/", {"reason": "fan <b> is loud"}, follow=True))
    assert "node-1 will be drained" in shown
    assert "draining …" in shown and "asked by <strong>rex</strong>" in shown and "fan &lt;b&gt; is loud" in shown
    assert "local has not confirmed it yet." in shown and f'data-live hx-get="{url}"' in shown
    assert f'href="{url}resume/"' in shown and f'href="{url}drain/"' not in shown
    carry_out_nodes(cast.cluster.pk)
    piece = rex.get(url, headers={"HX-Request": "true"})
    shown = text(piece)
    assert "▬</span> drained" in shown and "data-live" not in shown and "<td>rex</td>" in shown
    assert rex.get(url, headers={"HX-Request": "true", "If-None-Match": piece["ETag"]}).status_code == 304
    assert "2 jobs that run there now go on." in text(rex.get(f"{url}resume/"))
    shown = text(rex.post(f"{url}resume/", {"reason": ""}, follow=True))
    assert "resuming …" in shown and "node-1 will be resumed" in shown
    carry_out_nodes(cast.cluster.pk)
    shown = text(rex.get(url))
    assert "○</span> idle" in shown and "node.drain" in shown and "node.resume" in shown


def test_the_page_says_that_the_scheduler_is_down_and_that_it_is_tried_again(client, cast, node, jobs_root):
    (jobs_root / "file").write_text("")
    broken = {**cast.cluster.config, "spool_dir": str(jobs_root / "file" / "spool")}
    Cluster.objects.update(config=broken)
    client.force_login(cast.rex)
    client.post(f"/nodes/{node.pk}/drain/", {"reason": "fan is loud"})
    carry_out_nodes(cast.cluster.pk)
    shown = text(client.get(f"/nodes/{node.pk}/"))
    assert "draining …" in shown and "It stays wanted, and is tried again every few seconds." in shown
    assert "Not a directory" in shown
    client.force_login(cast.sam)
    shown = text(client.get(f"/nodes/{node.pk}/"))
    assert "draining …" in shown and "tried again" in shown and "Not a directory" not in shown


def test_a_cluster_that_is_off_is_told_later(rex, cast, node):
    Cluster.objects.update(is_enabled=False)
    shown = text(rex.post(f"/nodes/{node.pk}/drain/", {"reason": "fan is loud"}, follow=True))
    assert "local is switched off; it is told when it is on again." in shown


def test_a_refusal_stands_on_the_page_until_it_is_asked_again(rex, cast, node):
    Node.objects.update(name="node-9")
    rex.post(f"/nodes/{node.pk}/drain/", {"reason": "fan is loud"})
    carry_out_nodes(cast.cluster.pk)
    said = "The scheduler refused to drain it: this cluster has no node node-9"
    assert said in text(rex.get(f"/nodes/{node.pk}/"))
    assert "local refused to drain node-9" in text(rex.get("/inbox/"))
    assert said not in text(rex.post(f"/nodes/{node.pk}/drain/", {"reason": "again"}, follow=True))


@pytest.mark.parametrize("reason", ["", "x" * 201, "two\nlines", "\0"])
def test_a_form_without_a_proper_reason_keeps_what_was_typed(rex, node, reason):
    answer = rex.post(f"/nodes/{node.pk}/drain/", {"reason": reason})
    assert answer.status_code == 422 and set(answer.context["form"].errors) == {"reason"}
    assert Node.objects.get().wanted == ""


@pytest.mark.parametrize("person", ["olga", "mina", "vic", "sam"])
def test_others_find_no_button_and_no_way_in(client, cast, node, person):
    client.force_login(getattr(cast, person))
    shown = text(client.get(f"/nodes/{node.pk}/")) + text(client.get("/nodes/"))
    assert "drain/" not in shown and "resume/" not in shown and "checkbox" not in shown
    for path in (f"/nodes/{node.pk}/drain/", f"/nodes/{node.pk}/resume/", "/nodes/drain/", "/nodes/resume/"):
        assert client.get(path).status_code == 403
        assert client.post(path, {"reason": "why", "id": node.pk}).status_code == 403
    assert Node.objects.get().wanted == ""


def test_several_chosen_in_the_list(rex, cast, node):
    now = timezone.now()
    Node.objects.bulk_create(
        [
            *(Node(cluster=cast.cluster, name=f"n{n:02}", state="idle", seen_at=now) for n in range(30)),
            Node(cluster=cast.cluster, name="planned", state="planned"),
        ]
    )
    shown = text(rex.get("/nodes/"))
    assert shown.count('name="id"') == 31  # not the planned one, which no scheduler knows
    ids = list(Node.objects.filter(name__startswith="n").exclude(pk=node.pk).values_list("pk", flat=True))
    planned = Node.objects.get(name="planned").pk
    runs_on(cast, "n03", "n04")
    query = "&".join(f"id={pk}" for pk in [*ids, planned])
    form = text(rex.get(f"/nodes/drain/?{query}"))
    assert "Drain 31 nodes?" in form and "1 job runs there now, and runs to its end." in form
    assert "n19 and 11 more" in form and form.count('type="hidden" name="id"') == 31
    shown = text(rex.post("/nodes/drain/", {"id": [*ids, planned], "reason": "works"}, follow=True))
    assert "30 nodes will be drained" in shown and "local has not reported planned yet." in shown
    assert shown.count("draining …") == 30 and 'id="node-rows"' in shown and "data-live" in shown
    piece = text(rex.get("/nodes/", headers={"HX-Request": "true"}))
    assert piece.startswith("<div") and piece.count("draining …") == 30
    rex.post("/nodes/resume/", {"id": ids, "reason": ""})
    assert Node.objects.filter(wanted="resume").count() == 30


def test_nothing_chosen_says_so(rex, node):
    for path in ("/nodes/drain/", "/nodes/drain/?id=x&id=-1&id=99999999", "/nodes/resume/?id=" + "9" * 40):
        assert "No node was chosen." in text(rex.get(path, follow=True))


def test_a_list_of_nodes_that_are_being_drained_costs_the_same(rex, cast, node):
    now = timezone.now()
    Node.objects.bulk_create(Node(cluster=cast.cluster, name=f"n{n:02}", state="idle", seen_at=now) for n in range(90))

    def cost() -> int:
        with CaptureQueriesContext(connection) as captured:
            text(rex.get("/nodes/"))
        return len(captured)

    before = cost()
    rex.post("/nodes/drain/", {"id": list(Node.objects.values_list("pk", flat=True)), "reason": "works"})
    rex.get("/nodes/")  # shows the message
    assert cost() == before

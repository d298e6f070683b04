"""Pages of the site as people see them, what they cost, and who may change what."""

from __future__ import annotations

import time

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.core.models import AuditEntry
from apps.inventory.actions import open_accelerator_uses
from apps.inventory.models import (
    Accelerator,
    Cluster,
    Hall,
    Node,
    NodeStateChange,
    NodeType,
    Rack,
    Region,
    Site,
)
from apps.jobs.schedulers.base import AllocatedAccelerator
from tests.inventory.conftest import MANIFEST
from tests.jobs.helpers import submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def rex(client, cast):
    client.force_login(cast.rex)
    return client


@pytest.fixture
def rack(cast) -> Rack:
    site = Site.objects.create(region=Region.objects.create(name="north"), name="Aurland")
    return Rack.objects.create(hall=Hall.objects.create(site=site, name="H1"), name="A01")


def stand(cast, rack: Rack, name: str, position_u: int, **values) -> Node:
    return Node.objects.create(cluster=cast.cluster, name=name, rack=rack, position_u=position_u, height_u=4, **values)


def text(response) -> str:
    assert response.status_code == 200, response.content[:2000]
    return response.content.decode()


def queries(client, path: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        text(client.get(path))
    return len(captured)


def test_the_tree_shows_counts_and_the_worst_state(rex, cast, rack):
    stand(cast, rack, "n1", 1, state="idle")
    stand(cast, rack, "n2", 5, state="idle")
    stand(cast, rack, "n3", 9, state="down")
    shown = text(rex.get("/site/"))
    assert "1 racks, 3 nodes: 2 idle, 1 down" in " ".join(shown.split())
    assert '<span class="chip chip-bad"><span aria-hidden="true">✗</span> down</span>' in shown


def test_what_is_retired_is_not_in_the_tree(rex, cast, rack):
    stand(cast, rack, "n1", 1, retired_at=timezone.now())
    Hall.objects.create(site=rack.hall.site, name="H2", retired_at=timezone.now())
    shown = " ".join(text(rex.get("/site/")).split())
    assert "1 racks, 0 nodes" in shown and "H2" not in shown


def test_a_hall_draws_each_node_where_it_stands(rex, cast, rack):
    stand(cast, rack, "n1", 1, state="idle")
    stand(cast, rack, "n2", 39, state="down", reason="<no answer>")
    shown = text(rex.get(f"/site/halls/{rack.hall_id}/"))
    # 42 units: U1-4 are the grid's lines 39 to 42, U39-42 its first four.
    assert "grid-row: 39 / span 4" in shown and "grid-row: 1 / span 4" in shown
    assert "repeat(42, 8px)" in shown
    assert '<a class="rack-node bad"' in shown and "✗</span> n2 down" in shown
    assert "&lt;no answer&gt;" in shown and "<no answer>" not in shown


def test_a_hall_of_200_racks_costs_no_more_queries_than_one_of_one(rex, cast, rack):
    stand(cast, rack, "n1", 1)
    few = queries(rex, f"/site/halls/{rack.hall_id}/")
    racks = Rack.objects.bulk_create(Rack(hall=rack.hall, name=f"B{n:03}") for n in range(199))
    Node.objects.bulk_create(
        Node(cluster=cast.cluster, name=f"{one.name}-{n}", rack=one, position_u=1 + n * 4, height_u=4, state="mixed")
        for one in racks
        for n in range(10)
    )
    started = time.monotonic()
    assert queries(rex, f"/site/halls/{rack.hall_id}/") == few
    assert time.monotonic() - started < 3
    assert queries(rex, "/site/") <= 14


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["gpu001", "gpu002", "gpu003", "other"]),
        ("q=gpu[002-010]", ["gpu002", "gpu003"]),
        ("q=oth", ["other"]),
        ("state=down", ["gpu003"]),
        ("node_type=Box", ["gpu001"]),
        ("partition=local", ["gpu002"]),
        ("cluster=local&q=gpu001", ["gpu001"]),
        ("q=zzz", []),
    ],
)
def test_nodes_are_filtered_by_the_url(rex, cast, query, names):
    kind = NodeType.objects.create(name="Box")
    for name in ("gpu001", "gpu002", "gpu003", "other"):
        Node.objects.create(cluster=cast.cluster, name=name, state="down" if name == "gpu003" else "idle")
    Node.objects.filter(name="gpu001").update(node_type=kind)
    Node.objects.get(name="gpu002").partitions.add(cast.cluster.partitions.get())
    response = rex.get(f"/nodes/?{query}")
    assert response.status_code == 200
    assert [node.name for node in response.context["page"].rows] == names


@pytest.mark.parametrize("query", ["q=gpu[1-", "after=x", "after=99999", "after=" + "9" * 30, "q=gpu[1-999999999]"])
def test_a_filter_that_cannot_be_read_is_told_and_all_are_shown(rex, cast, query):
    Node.objects.create(cluster=cast.cluster, name="gpu001")
    shown = text(rex.get(f"/nodes/?{query}"))
    assert "All nodes are shown" in shown and "gpu001" in shown


def test_nodes_are_paged_by_key_at_the_same_cost(rex, cast):
    Node.objects.bulk_create(Node(cluster=cast.cluster, name=f"n{n:04}") for n in range(250))
    cost = queries(rex, "/nodes/")
    first = rex.get("/nodes/").context["page"]
    second = rex.get(f"/nodes/?after={first.next}").context["page"]
    assert (first.rows[0].name, second.rows[0].name, len(second.rows)) == ("n0000", "n0100", 100)
    assert queries(rex, f"/nodes/?after={second.next}") == cost + 1


def test_a_node_shows_who_holds_its_cards_to_those_who_may_see_the_job(client, cast, rack):
    node = stand(cast, rack, "n1", 1, state="mixed", serial="S1")
    for index in range(2):
        Accelerator.objects.create(uuid=f"GPU-{index}", node=node, index=index, model="H100")
    job = submit(cast, name="a secret name", hold=True)
    held = [AllocatedAccelerator(node="n1", index=1, uuid="GPU-1")]
    open_accelerator_uses(cast.cluster, f"{job.public_id}:1", held, timezone.now())
    NodeStateChange.objects.create(node=node, at=timezone.now(), state="down", reason="fan", source="local")
    client.force_login(cast.mina)
    shown = text(client.get(f"/nodes/{node.pk}/"))
    assert "GPU-0" in shown and f"/jobs/{job.public_id}/" in shown and "fan" in shown and "S1" in shown
    client.force_login(cast.sam)
    shown = text(client.get(f"/nodes/{node.pk}/"))
    assert "a job you may not see" in shown and job.public_id not in shown and "a secret name" not in shown


def test_a_node_page_costs_the_same_whatever_its_history(rex, cast, rack):
    node = stand(cast, rack, "n1", 1)
    few = queries(rex, f"/nodes/{node.pk}/")
    NodeStateChange.objects.bulk_create(
        NodeStateChange(node=node, at=timezone.now(), state="idle", source="x") for _ in range(500)
    )
    Accelerator.objects.bulk_create(Accelerator(uuid=f"GPU-{n}", node=node, index=n) for n in range(16))
    assert queries(rex, f"/nodes/{node.pk}/") <= few + 1


def test_a_stale_cluster_says_so_and_shows_its_error_to_operators(client, cast):
    cast.cluster.poll_succeeded_at = timezone.now() - timezone.timedelta(minutes=5)
    cast.cluster.poll_error = "connection refused"
    cast.cluster.notes = ["Jobs run as the product's own user."]
    cast.cluster.save()
    client.force_login(cast.sam)
    shown = text(client.get("/clusters/local/"))
    assert "does not answer" in shown and "connection refused" not in shown and "own user" in shown
    assert "stale" in text(client.get("/clusters/"))
    client.force_login(cast.rex)
    assert "connection refused" in text(client.get("/clusters/local/"))


def test_an_operator_switches_a_cluster_off(rex, cast):
    assert rex.post("/clusters/local/edit/", {"title": "Mine"}).status_code == 302
    cluster = Cluster.objects.get(name="local")
    assert (cluster.is_enabled, cluster.title) == (False, "Mine")
    assert "Switched off" in text(rex.get("/clusters/local/"))
    entry = AuditEntry.objects.get(verb="cluster.edit")
    assert entry.before["is_enabled"] is True and entry.after["is_enabled"] is False


# -- forms -------------------------------------------------------------------------------------------------------------


def test_a_place_is_added_edited_and_retired_by_forms(rex, cast, rack):
    hall = rack.hall
    assert f'<option value="{hall.pk}" selected>' in text(rex.get(f"/site/add/rack/?parent={hall.pk}"))
    answer = rex.post("/site/add/rack/", {"hall": hall.pk, "name": "A02", "height_u": 48})
    assert answer.status_code == 302 and answer["Location"] == f"/site/halls/{hall.pk}/"
    made = Rack.objects.get(name="A02")
    assert 'value="48"' in text(rex.get(f"/site/edit/rack/{made.pk}/"))
    rex.post(f"/site/edit/rack/{made.pk}/", {"hall": hall.pk, "name": "A02", "height_u": 47})
    made.refresh_from_db()
    assert made.height_u == 47
    assert "rack.edit" in text(rex.get(f"/site/edit/rack/{made.pk}/"))
    rex.post(f"/site/retire/rack/{made.pk}/")
    made.refresh_from_db()
    assert made.retired_at is not None


def test_a_form_keeps_what_was_typed_and_names_the_field(rex, cast, rack):
    stand(cast, rack, "n1", 1)
    form = {"name": "n2", "rack": rack.pk, "position_u": 3, "height_u": 4, "face": "front", "serial": "typed"}
    answer = rex.post("/site/add/node/", form)
    assert answer.status_code == 422
    assert answer.context["form"].errors == {"position_u": ["n1 stands in U1-4 of this rack."]}
    assert "typed" in answer.content.decode() and not Node.objects.filter(name="n2").exists()


def test_a_name_that_a_scheduler_knows_is_not_edited(rex, cast, rack):
    node = stand(cast, rack, "n1", 1)
    assert "name" not in rex.get(f"/site/edit/node/{node.pk}/").context["form"].fields
    form = {"name": "renamed", "rack": rack.pk, "position_u": 9, "height_u": 4, "face": "rear"}
    assert rex.post(f"/site/edit/node/{node.pk}/", form).status_code == 302
    node.refresh_from_db()
    assert (node.name, node.position_u, node.face) == ("n1", 9, "rear")
    assert "node.edit" in text(rex.get(f"/nodes/{node.pk}/"))


def test_a_place_that_is_not_empty_says_so(rex, cast, rack):
    shown = text(rex.post(f"/site/retire/hall/{rack.hall_id}/", follow=True))
    assert "still holds 1 rack" in shown and Hall.objects.get().retired_at is None


@pytest.mark.parametrize("path", ["/site/add/moon/", "/site/edit/rack/99/", "/site/halls/99/", "/nodes/99/"])
def test_what_is_not_there(rex, path):
    assert rex.get(path).status_code == 404


@pytest.mark.parametrize("person", ["olga", "mina", "vic", "sam"])
def test_only_operators_find_the_forms(client, cast, rack, person):
    client.force_login(getattr(cast, person))
    for path in ("/site/add/region/", f"/site/edit/rack/{rack.pk}/", "/site/manifest/", "/site/import/"):
        assert client.get(path).status_code == 403
        assert client.post(path, {"name": "x"}).status_code == 403
    assert client.post(f"/site/retire/rack/{rack.pk}/").status_code == 403
    assert "/site/add/" not in text(client.get("/site/")) and "/site/edit/" not in text(client.get("/site/"))
    assert Region.objects.count() == 1


# -- the manifest and the table ----------------------------------------------------------------------------------------


def upload(content: str | bytes, name: str = "site.yaml") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content.encode() if isinstance(content, str) else content)


def test_a_manifest_is_shown_as_a_diff_then_applied(rex, cast):
    shown = text(rex.post("/site/manifest/", {"manifest": upload(MANIFEST)}))
    assert "site.yaml: 1 region, 1 site, 1 hall, 2 racks" in shown and "node alpha / n1" in shown
    assert not Node.objects.exists()
    # Browsers send the lines of a text field with CR LF.
    form = {"text": MANIFEST.replace("\n", "\r\n"), "file_name": "site.yaml", "apply": "1"}
    assert "4 nodes to add" in text(rex.post("/site/manifest/", form, follow=True))
    assert Node.objects.count() == 4 and AuditEntry.objects.filter(verb="node.add", actor=cast.rex).count() == 4
    assert "The site is as the manifest says." in text(rex.post("/site/manifest/", {"manifest": upload(MANIFEST)}))
    moved = text(rex.post("/site/manifest/", {"manifest": upload(MANIFEST.replace("[1, 5]", "[1, 9]"))}))
    assert "position_u 5 -&gt; 9" in moved


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (MANIFEST.replace("type: Box", "type: <b>"), "line 19: clusters[0].nodes[0].type: There is no node type"),
        ("", "The submitted file is empty."),
        (b"\xff\xfe\x00", "line 1: This is not UTF-8 text"),
        ("#" * (2 * 2**20 + 5), "at most 2,097,152 are read"),
    ],
)
def test_a_manifest_that_is_wrong_is_told_with_its_line(rex, cast, content, said):
    answer = rex.post("/site/manifest/", {"manifest": upload(content)})
    assert answer.status_code == 422 and said in answer.content.decode()
    assert "<b>" not in answer.content.decode().partition("<main")[2].partition("</main>")[0]
    assert not Region.objects.exists()


def test_a_manifest_form_without_a_file_says_so(rex, cast):
    answer = rex.post("/site/manifest/", {})
    assert answer.status_code == 422 and "Choose a file." in answer.content.decode()


def test_a_table_of_nodes_is_imported(rex, cast, rack):
    table = upload(b"\xef\xbb\xbfname,cluster,rack,position\r\ngpu1,local,A01,1\r\ngpu2,local,A07,2\r\n", "n.csv")
    shown = text(rex.post("/site/import/", {"file": table, "hall": rack.hall_id}, follow=True))
    assert "2 nodes added" in shown
    assert sorted(Node.objects.values_list("name", "rack__name")) == [("gpu1", "A01"), ("gpu2", "A07")]
    answer = rex.post("/site/import/", {"file": upload("name,name\nx,y\n", "n.csv")})
    assert answer.status_code == 422 and "line 1: column 2" in answer.content.decode()

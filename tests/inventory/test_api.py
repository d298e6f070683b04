"""The inventory through the API: everybody reads, operators write, and a dry run keeps nothing."""

from __future__ import annotations

import pytest

from apps.core.models import AuditEntry
from apps.inventory.models import Accelerator, AcceleratorModel, Node, NodeStateChange, NodeType, Rack, Region, Site
from tests.api.conftest import as_person, fields_of  # noqa: F401
from tests.inventory.conftest import MANIFEST

pytestmark = pytest.mark.django_db
LISTS = ["regions", "sites", "halls", "racks", "nodes", "node-types", "accelerators", "accelerator-models"]
LISTS += ["clusters", "partitions"]


@pytest.fixture
def rex(cast, as_person):  # noqa: F811
    return as_person(cast.rex)


@pytest.fixture
def mina(cast, as_person):  # noqa: F811
    return as_person(cast.mina)


def made(response) -> dict:
    assert response.status_code == 201, response.content
    return response.json()


@pytest.fixture
def rack(rex) -> dict:
    region = made(rex.post("/api/v1/regions/", {"name": "north"}))
    site = made(rex.post("/api/v1/sites/", {"region": region["id"], "name": "Aurland", "time_zone": "Europe/Oslo"}))
    hall = made(rex.post("/api/v1/halls/", {"site": site["id"], "name": "H1"}))
    return made(rex.post("/api/v1/racks/", {"hall": hall["id"], "name": "A01", "height_u": 20}))


def patch(client, path: str, data: dict):
    return client.patch(path, data, content_type="application/json")


def test_a_site_is_built_and_read_back(rex, mina, rack):
    node = made(
        rex.post(
            "/api/v1/nodes/",
            {"name": "n1", "cluster": "local", "rack": rack["id"], "position_u": 3, "height_u": 4, "serial": "S1"},
        )
    )
    assert (node["state"], node["cluster"], node["rack"], node["position_u"]) == ("planned", "local", rack["id"], 3)
    read = mina.get(f"/api/v1/nodes/{node['id']}/")
    assert read.json() == node
    assert mina.get(f"/api/v1/nodes/{node['id']}/", headers={"If-None-Match": read["ETag"]}).status_code == 304
    assert [one["name"] for one in mina.get(f"/api/v1/racks/?hall={rack['hall']}").json()["results"]] == ["A01"]
    states = mina.get(f"/api/v1/nodes/{node['id']}/states/").json()["results"]
    assert [(one["state"], one["source"]) for one in states] == [("planned", "rex")]


@pytest.mark.parametrize("plural", LISTS)
def test_everybody_signed_in_reads(cast, mina, plural):
    answer = mina.get(f"/api/v1/{plural}/")
    assert answer.status_code == 200 and "results" in answer.json()
    assert fields_of(mina.get(f"/api/v1/{plural}/?colour=red")) == ["colour"]


def test_only_operators_write(cast, mina, rack):
    region = Region.objects.get()
    for answer in (
        mina.post("/api/v1/regions/", {"name": "x"}),
        patch(mina, f"/api/v1/regions/{region.pk}/", {"name": "x"}),
        mina.delete(f"/api/v1/regions/{region.pk}/"),
        patch(mina, "/api/v1/clusters/local/", {"title": "x"}),
        mina.post("/api/v1/manifest/", {"manifest": MANIFEST}),
    ):
        assert answer.status_code == 403, answer.content
    assert Region.objects.get().name == "north"


def test_two_nodes_cannot_share_a_unit(rex, rack):
    made(rex.post("/api/v1/nodes/", {"name": "n1", "rack": rack["id"], "position_u": 1, "height_u": 4}))
    answer = rex.post("/api/v1/nodes/", {"name": "n2", "rack": rack["id"], "position_u": 4})
    assert answer.status_code == 400
    assert answer.json()["errors"] == [{"field": "position_u", "message": "n1 stands in U1-4 of this rack."}]


def test_a_dry_run_says_what_would_be_and_keeps_nothing(rex, rack):
    entries = AuditEntry.objects.count()
    added = rex.post("/api/v1/racks/?dry_run=true", {"hall": rack["hall"], "name": "A02"})
    assert added.status_code == 200 and added.json()["name"] == "A02"
    changed = patch(rex, f"/api/v1/racks/{rack['id']}/?dry_run=true", {"row": "B"})
    assert changed.json()["row"] == "B"
    assert rex.delete(f"/api/v1/racks/{rack['id']}/?dry_run=true").status_code == 204
    row = Rack.objects.get()
    assert (row.row, row.retired_at, AuditEntry.objects.count()) == ("", None, entries)


def test_a_patch_changes_what_it_names(rex, rack):
    answer = patch(rex, f"/api/v1/racks/{rack['id']}/", {"row": "B"})
    assert answer.json() == rack | {"row": "B"}
    entry = AuditEntry.objects.get(verb="rack.edit")
    assert (entry.before, entry.after, entry.via) == ({"row": ""}, {"row": "B"}, "api")


def test_what_is_retired_is_not_found_until_it_is_added_again(rex, rack):
    assert rex.delete(f"/api/v1/halls/{rack['hall']}/").status_code == 409
    assert rex.delete(f"/api/v1/racks/{rack['id']}/").status_code == 204
    assert rex.get(f"/api/v1/racks/{rack['id']}/").status_code == 404
    assert rex.get("/api/v1/racks/").json()["results"] == []
    assert made(rex.post("/api/v1/racks/", {"hall": rack["hall"], "name": "A01"}))["id"] == rack["id"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("sites", {"region": 999, "name": "x"}, "region"),
        ("nodes", {"name": "n", "cluster": "none"}, "cluster"),
        ("nodes", {"name": "n", "node_type": "none"}, "node_type"),
        ("nodes", {"name": "n", "position_u": 1}, "rack"),
        ("nodes", {"name": "n", "state": "idle"}, "state"),
        ("nodes", {"name": "n", "height_u": 0}, "height_u"),
        ("racks", {"name": "x"}, "hall"),
        ("node-types", {"name": "x", "accelerator_model": "none"}, "accelerator_model"),
        ("regions", {"name": "north"}, "name"),
        ("regions", {"name": "a\u0000b"}, "name"),
    ],
)
def test_a_mistake_names_its_field(rex, rack, path, body, field):
    answer = rex.post(f"/api/v1/{path}/", body)
    assert answer.status_code == 400 and fields_of(answer) == [field], answer.content


def test_nodes_are_filtered_and_paged(cast, rex, mina):
    kind = NodeType.objects.create(name="Box")
    Node.objects.bulk_create(
        Node(
            cluster=cast.cluster,
            name=f"gpu{n:03}",
            state="idle" if n % 2 else "down",
            node_type=kind if n == 7 else None,
        )
        for n in range(1, 11)
    )

    def names(query: str) -> list[str]:
        return [one["name"] for one in mina.get(f"/api/v1/nodes/?{query}").json()["results"]]

    assert names("q=gpu[001-003,010]") == ["gpu001", "gpu002", "gpu003", "gpu010"]
    assert names("state=idle&q=00") == ["gpu001", "gpu003", "gpu005", "gpu007", "gpu009"]
    assert names("node_type=Box") == ["gpu007"]
    assert names("cluster=other") == []
    first = mina.get("/api/v1/nodes/?limit=4").json()
    second = mina.get(first["next"]).json()
    assert [one["name"] for one in second["results"]] == ["gpu005", "gpu006", "gpu007", "gpu008"]
    assert fields_of(mina.get("/api/v1/nodes/?q=gpu[1-")) == ["q"]


def test_cards_are_found_by_their_uuid(cast, mina):
    node = Node.objects.create(cluster=cast.cluster, name="n1")
    Accelerator.objects.create(uuid="GPU-1", node=node, index=0, model="H100")
    Accelerator.objects.create(uuid="GPU-2", node=node, index=1, model="H100")
    found = mina.get("/api/v1/accelerators/?uuid=GPU-2").json()["results"]
    assert [(one["node_name"], one["index"]) for one in found] == [("n1", 1)]


def test_a_cluster_is_switched_off_and_its_error_is_for_operators(cast, rex, mina):
    cast.cluster.poll_error = "no answer"
    cast.cluster.save()
    assert "poll_error" not in mina.get("/api/v1/clusters/local/").json()
    assert rex.get("/api/v1/clusters/local/").json()["poll_error"] == "no answer"
    assert patch(rex, "/api/v1/clusters/local/", {"is_enabled": False}).json()["is_enabled"] is False
    cast.cluster.refresh_from_db()
    assert (cast.cluster.is_enabled, cast.cluster.title) == (False, "This machine")
    assert mina.get("/api/v1/clusters/none/").status_code == 404


def test_a_manifest_is_planned_then_loaded(rex):
    planned = rex.post("/api/v1/manifest/?dry_run=true", {"manifest": MANIFEST}).json()
    assert len(planned["changes"]) == 12 and not Site.objects.exists()
    loaded = rex.post("/api/v1/manifest/", {"manifest": MANIFEST}).json()
    assert loaded == planned and NodeStateChange.objects.count() == 4
    assert rex.post("/api/v1/manifest/", {"manifest": MANIFEST}).json() == {
        "summary": "nothing to change",
        "changes": [],
    }
    moved = rex.post("/api/v1/manifest/", {"manifest": MANIFEST.replace("[1, 5]", "[1, 9]")}).json()["changes"][0]
    assert moved == {
        "action": "change",
        "kind": "node",
        "path": ["alpha", "n2"],
        "before": {"position_u": 5},
        "after": {"position_u": 9},
    }


def test_a_bad_manifest_is_told_line_by_line(rex):
    answer = rex.post("/api/v1/manifest/", {"manifest": MANIFEST.replace("type: Box", "type: Bax")})
    assert answer.status_code == 400
    assert answer.json()["errors"] == [
        {
            "field": "manifest",
            "message": "line 19: clusters[0].nodes[0].type: There is no node type 'Bax'; did you mean 'Box'.",
        }
    ]


def test_the_catalogue_says_where_its_figures_come_from(mina, cast):
    AcceleratorModel.objects.create(name="H100", vendor="NVIDIA", source="datasheet")
    assert mina.get("/api/v1/accelerator-models/").json()["results"][0]["source"] == "datasheet"

"""A manifest put into rows: what it changes, that it changes it once, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from apps.core.errors import InvalidInput, NotAllowed
from apps.core.models import AuditEntry
from apps.inventory.actions import record_cluster_view
from apps.inventory.loading import plan_manifest, read_manifest
from apps.inventory.models import Cluster, Hall, Node, NodeStateChange, NodeType, Partition, Rack, Region, Site
from apps.jobs.schedulers.base import ClusterView, ObservedNode, ObservedPartition
from tests.inventory.conftest import MANIFEST

pytestmark = pytest.mark.django_db
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "site.yaml"


def words(plan) -> list[str]:
    return [str(change) for change in plan.changes]


def places() -> dict[str, tuple[str, int]]:
    rows = Node.objects.filter(retired_at__isnull=True).values_list("name", "rack__name", "position_u")
    return {name: (rack, position_u) for name, rack, position_u in rows}


def test_a_first_load_makes_all_of_it(load):
    plan = load()
    assert plan.summary() == (
        "1 region, 1 site, 1 hall, 2 racks, 1 node type, 1 cluster, 1 partition and 4 nodes to add"
    )
    assert places() == {"n1": ("A01", 1), "n2": ("A01", 5), "n3": ("A02", 1), "n4": ("A02", 5)}
    node = Node.objects.get(name="n1")
    assert (node.state, node.cpus, node.memory_bytes, node.height_u) == ("planned", 64, 512 * 2**30, 4)
    assert list(NodeStateChange.objects.filter(node=node).values_list("state", "source")) == [("planned", "manifest")]
    alpha = Cluster.objects.get(name="alpha")
    assert alpha.is_enabled is False and alpha.site.name == "Aurland"
    assert sorted(n.name for n in alpha.partitions.get().nodes.all()) == ["n1", "n2", "n3", "n4"]


def test_a_second_load_changes_nothing(load):
    load()
    stamps = list(Node.objects.order_by("pk").values_list("updated_at", flat=True))
    entries = AuditEntry.objects.count()
    plan = load()
    assert plan.changes == () and plan.summary() == "nothing to change"
    assert list(Node.objects.order_by("pk").values_list("updated_at", flat=True)) == stamps
    assert AuditEntry.objects.count() == entries


def test_a_change_says_from_what_to_what_and_leaves_its_mark(load, cast):
    load()
    plan = load(("[1, 5]", "[1, 9]"), ("height_u: 42", "height_u: 48"), by=cast.rex)
    assert words(plan) == [
        "~ rack north / Aurland / H1 / A01: height_u 42 -> 48",
        "~ rack north / Aurland / H1 / A02: height_u 42 -> 48",
        "~ node alpha / n2: position_u 5 -> 9",
        "~ node alpha / n4: position_u 5 -> 9",
    ]
    entry = AuditEntry.objects.get(target_type="node", target_name="n2", verb="node.edit")
    assert (entry.actor, entry.before, entry.after) == (cast.rex, {"position_u": 5}, {"position_u": 9})


def test_nodes_swap_places(load):
    load()
    head, rest = MANIFEST.split("      - names: n[1-4]")
    nodes = "".join(
        f"      - {{names: n{n}, type: Box, hall: H1, racks: {rack}, positions_u: [{u}]}}\n"
        for n, rack, u in ((1, "A02", 5), (2, "A01", 1), (3, "A02", 1), (4, "A01", 5))
    )
    load(text=head + nodes + rest[rest.index("    partitions:") :])
    assert places() == {"n1": ("A02", 5), "n2": ("A01", 1), "n3": ("A02", 1), "n4": ("A01", 5)}


def test_what_is_no_longer_listed_retires_and_comes_back_as_the_same_row(load):
    load()
    pk = Node.objects.get(name="n4").pk
    plan = load(("names: n[1-4]", "names: n[1-3]"), ('nodes: "n[1-4]"', 'nodes: "n[1-3]"'))
    assert words(plan) == [
        "~ partition alpha / train: nodes n1 / n2 / n3 / n4 -> n1 / n2 / n3",
        "- node alpha / n4",
    ]
    assert Node.objects.get(pk=pk).retired_at is not None
    assert words(load()) == [
        "~ partition alpha / train: nodes n1 / n2 / n3 -> n1 / n2 / n3 / n4",
        "+ node alpha / n4",
    ]
    assert Node.objects.get(pk=pk).retired_at is None and Node.objects.filter(name="n4").count() == 1


def test_a_place_that_is_given_up_retires_with_its_racks(load):
    load()
    load(
        ('              - {names: "A[01-02]", row: A, place: 1, height_u: 42}\n', '              - {names: "A01"}\n'),
        ("racks: A[01-02]", "racks: A01"),
        ("[1, 5]", "[1, 5, 9, 13]"),
    )
    assert Rack.objects.get(name="A02").retired_at is not None and places()["n4"] == ("A01", 13)


def test_a_node_its_scheduler_still_lists_stays_without_a_place(load):
    load()
    seen = tuple(ObservedNode(f"n{n}", "idle", 64, 512 * 2**30) for n in range(1, 5))
    alpha = Cluster.objects.get(name="alpha")
    record_cluster_view(alpha, ClusterView(seen, (ObservedPartition("batch", max_time_s=60),)))
    fewer = (("names: n[1-4]", "names: n[1-3]"), ('nodes: "n[1-4]"', 'nodes: "n[1-3]"'))
    plan = load(*fewer)
    # The scheduler has answered: its partitions are its own, whatever the manifest says.
    assert words(plan) == [
        "~ node alpha / n4: type Box -> none, rack north / Aurland / H1 / A02 -> none, position_u 5 -> none"
    ]
    node = Node.objects.get(name="n4")
    assert (node.retired_at, node.rack, node.state) == (None, None, "idle")
    assert load(*fewer).changes == ()
    assert Partition.objects.get(cluster=alpha, name="batch").retired_at is None


def test_other_regions_and_clusters_are_left_alone(load, cast):
    hall = Hall.objects.create(
        name="H9", site=Site.objects.create(name="s", region=Region.objects.create(name="south"))
    )
    Node.objects.create(cluster=cast.cluster, name="other", rack=Rack.objects.create(hall=hall, name="Z1"))
    load()
    assert Node.objects.get(name="other").rack.name == "Z1" and Rack.objects.get(name="Z1").retired_at is None


def test_units_that_a_node_of_another_cluster_fills(load, cast):
    load(("racks: A[01-02]", "racks: A01"), ("[1, 5]", "[1, 5, 9, 13]"))
    Node.objects.create(cluster=cast.cluster, name="other", rack=Rack.objects.get(name="A02"), position_u=7, height_u=2)
    with pytest.raises(InvalidInput) as caught:
        load()
    assert caught.value.fields == {"manifest": ["line 18: U7 of rack A02 is filled by node other of local."]}
    with pytest.raises(InvalidInput) as caught:
        load(('A[01-02]", row', 'A01", row'), ("racks: A[01-02]", "racks: A01"), ("[1, 5]", "[1, 5, 9, 13]"))
    assert caught.value.fields == {"manifest": ["Rack A02 is no longer listed, and node other of local stands in it."]}


def test_an_accelerator_the_catalogue_does_not_have(load):
    with pytest.raises(InvalidInput, match="no accelerator 'H900'"):
        load(("{name: Box,", "{name: Box, accelerator: H900,"))
    assert not Region.objects.exists()


def test_only_operators_load(load, cast):
    with pytest.raises(NotAllowed):
        load(by=cast.olga)
    assert not Region.objects.exists()


def test_a_plan_changes_nothing(load):
    plan = plan_manifest(read_manifest(MANIFEST.encode(), file="site.yaml"))
    assert len(plan.changes) == 12
    assert not Region.objects.exists() and not AuditEntry.objects.exists()


def test_the_example_loads_over_the_catalogue_and_is_idempotent(capsys):
    call_command("load_catalogue", verbosity=0)
    call_command("load_manifest", EXAMPLE, dry_run=True)
    assert capsys.readouterr().out.splitlines()[-1].startswith("would be: 1 region, 1 site, 2 halls, 21 racks")
    assert not Region.objects.exists()
    call_command("load_manifest", EXAMPLE)
    assert Node.objects.count() == 76 and Node.objects.get(name="gpu001").accelerator_count == 8
    capsys.readouterr()
    call_command("load_manifest", EXAMPLE)
    assert capsys.readouterr().out == "nothing to change\n"
    assert AuditEntry.objects.filter(verb="node.add", via="command").count() == 76


def test_the_command_tells_the_lines_and_fails(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(MANIFEST.replace("type: Box", "type: Bax"))
    with pytest.raises(CommandError) as caught:
        call_command("load_manifest", file)
    assert (
        str(caught.value) == f"{file}:19: clusters[0].nodes[0].type: There is no node type 'Bax'; did you mean 'Box'."
    )
    with pytest.raises(CommandError, match="No such file"):
        call_command("load_manifest", tmp_path / "none.yaml")


def test_the_catalogue_loads_twice_and_keeps_the_sites_own_types():
    NodeType.objects.create(name="Ours", cpus=3)
    call_command("load_catalogue", verbosity=0)
    before = NodeType.objects.count()
    call_command("load_catalogue", verbosity=0)
    assert NodeType.objects.count() == before and NodeType.objects.get(name="Ours").cpus == 3
    h100 = NodeType.objects.get(name="DGX H100")
    assert (h100.accelerators_per_node, h100.power_max_w, h100.nics_per_node) == (8, 10_200, 8)
    assert h100.accelerator_model.bf16_tflops == 989 and h100.accelerator_model.tdp_w == 700
    assert not NodeType.objects.exclude(name="Ours").filter(source="").exists()

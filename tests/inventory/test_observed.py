"""What a scheduler reports of its nodes, written to rows: from one node to ten thousand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.inventory.actions import record_cluster_view
from apps.inventory.models import Accelerator, Hall, Node, NodeStateChange, NodeType, Partition, Rack, Region, Site
from apps.jobs.schedulers.base import ClusterView, ObservedAccelerator, ObservedNode, ObservedPartition

pytestmark = pytest.mark.django_db


def node(name: str = "gpu001", **values) -> ObservedNode:
    return ObservedNode(**{"name": name, "state": "idle", "cpus": 8, "memory_bytes": 64 * 2**30, **values})


def holding(name: str, *uuids: str) -> ObservedNode:
    return node(name, accelerators=tuple(card(uuid, index) for index, uuid in enumerate(uuids)))


def view(*nodes: ObservedNode, partitions=("train",), notes=()) -> ClusterView:
    listed = tuple(ObservedPartition(name, is_default=name == "train", max_time_s=3600) for name in partitions)
    return ClusterView(nodes=nodes, partitions=listed, notes=notes)


def card(uuid: str, index: int = 0) -> ObservedAccelerator:
    return ObservedAccelerator(index=index, uuid=uuid, model="H100", memory_bytes=80 * 2**30)


def history(name: str = "gpu001") -> list[tuple[str, str]]:
    return list(NodeStateChange.objects.filter(node__name=name).order_by("id").values_list("state", "reason"))


def test_one_node_with_its_partition_and_card(cast):
    Partition.objects.filter(cluster=cast.cluster).delete()
    record_cluster_view(cast.cluster, view(node(partitions=("train",), accelerators=(card("GPU-1"),)), notes=("note",)))
    row = Node.objects.get(name="gpu001")
    assert (row.state, row.cpus, row.memory_bytes, row.accelerator_count) == ("idle", 8, 64 * 2**30, 1)
    assert [p.name for p in row.partitions.all()] == ["train"]
    assert Accelerator.objects.get(uuid="GPU-1").node == row
    assert history() == [("idle", "")]
    cast.cluster.refresh_from_db()
    assert cast.cluster.notes == ["note"] and cast.cluster.nodes_polled_at is not None


def test_history_grows_only_when_something_changed(cast):
    for state, reason in [("idle", ""), ("idle", ""), ("down", "no answer"), ("down", "no answer"), ("idle", "")]:
        record_cluster_view(cast.cluster, view(node(state=state, reason=reason)))
    assert history() == [("idle", ""), ("down", "no answer"), ("idle", "")]


def test_a_state_we_do_not_know_is_unknown(cast):
    record_cluster_view(cast.cluster, view(node(state="blown up")))
    assert Node.objects.get(name="gpu001").state == "unknown"


def test_a_node_that_is_no_longer_listed_is_unknown_and_comes_back(cast):
    record_cluster_view(cast.cluster, view(node()))
    record_cluster_view(cast.cluster, view())
    record_cluster_view(cast.cluster, view())
    assert history() == [("idle", ""), ("unknown", "the scheduler no longer lists this node")]
    record_cluster_view(cast.cluster, view(node()))
    assert Node.objects.get(name="gpu001").state == "idle" and len(history()) == 3


def test_a_partition_that_is_gone_retires_and_comes_back(cast):
    record_cluster_view(cast.cluster, view(partitions=("train", "prep")))
    record_cluster_view(cast.cluster, view(partitions=("train",)))
    assert Partition.objects.get(name="prep").retired_at is not None
    record_cluster_view(cast.cluster, view(partitions=("train", "prep")))
    assert Partition.objects.get(name="prep").retired_at is None


def test_a_node_leaves_a_partition(cast):
    record_cluster_view(cast.cluster, view(node(partitions=("train", "prep")), partitions=("train", "prep")))
    record_cluster_view(cast.cluster, view(node(partitions=("prep",)), partitions=("train", "prep")))
    assert [p.name for p in Node.objects.get(name="gpu001").partitions.all()] == ["prep"]


def test_a_card_that_moves_keeps_its_row_and_a_replaced_one_retires(cast):
    record_cluster_view(
        cast.cluster, view(node("a", accelerators=(card("GPU-1"),)), node("b", accelerators=(card("GPU-2"),)))
    )
    first = Accelerator.objects.get(uuid="GPU-1").pk
    # GPU-1 goes to node b, in the place of GPU-2, which is taken out; a new card comes into node a.
    record_cluster_view(
        cast.cluster, view(node("a", accelerators=(card("GPU-3"),)), node("b", accelerators=(card("GPU-1"),)))
    )
    moved = Accelerator.objects.get(uuid="GPU-1")
    assert (moved.pk, moved.node.name, moved.retired_at) == (first, "b", None)
    assert Accelerator.objects.get(uuid="GPU-2").retired_at is not None
    assert Accelerator.objects.get(uuid="GPU-3").node.name == "a"
    # GPU-2 has been mended and is put back where it was.
    record_cluster_view(cast.cluster, view(holding("a", "GPU-3"), holding("b", "GPU-2")))
    back = Accelerator.objects.get(uuid="GPU-2")
    assert (back.node.name, back.retired_at) == ("b", None)


def test_two_cards_swap(cast):
    record_cluster_view(cast.cluster, view(holding("a", "GPU-1", "GPU-2")))
    record_cluster_view(cast.cluster, view(holding("a", "GPU-2", "GPU-1")))
    assert dict(Accelerator.objects.values_list("uuid", "index")) == {"GPU-1": 1, "GPU-2": 0}


def test_the_hardware_of_a_nodes_type_stands_and_a_difference_is_noted(cast):
    kind = NodeType.objects.create(name="DGX", accelerators_per_node=8)
    hall = Hall.objects.create(name="h", site=Site.objects.create(name="s", region=Region.objects.create(name="r")))
    Node.objects.create(
        cluster=cast.cluster,
        name="gpu001",
        node_type=kind,
        rack=Rack.objects.create(hall=hall, name="A01"),
        position_u=1,
        height_u=8,
        cpus=192,
        memory_bytes=100 * 2**30,
        accelerator_count=8,
    )
    # 95 of 100 GiB is what a scheduler is told on purpose; 96 CPUs are not 192.
    seen = node(cpus=96, memory_bytes=95 * 2**30, accelerators=tuple(card(f"GPU-{n}", n) for n in range(8)))
    record_cluster_view(cast.cluster, view(seen))
    row = Node.objects.get(name="gpu001")
    assert (row.cpus, row.memory_bytes, row.accelerator_count, row.state) == (192, 100 * 2**30, 8, "idle")
    cast.cluster.refresh_from_db()
    assert cast.cluster.notes == ["gpu001: 96 CPUs by its scheduler, 192 CPUs by its type"]
    record_cluster_view(cast.cluster, view(replace(seen, cpus=192)))
    cast.cluster.refresh_from_db()
    assert cast.cluster.notes == []


def test_ten_thousand_nodes_cost_a_bounded_number_of_statements(cast):
    def many(state: str) -> ClusterView:
        return view(
            *(
                replace(holding(f"n{i:05}", f"GPU-{i}"), state=state, cpus_used=len(state), partitions=("train",))
                for i in range(10_000)
            )
        )

    with CaptureQueriesContext(
        connection,
    ) as first:
        record_cluster_view(cast.cluster, many("idle"))
    with CaptureQueriesContext(connection) as changed:
        record_cluster_view(cast.cluster, many("allocated"))
    with CaptureQueriesContext(connection) as same:
        record_cluster_view(cast.cluster, many("allocated"))
    assert Node.objects.filter(state="allocated", cpus_used=9).count() == 10_000
    assert NodeStateChange.objects.count() == 20_000
    assert len(first) <= 40 and len(changed) <= 30 and len(same) <= 12

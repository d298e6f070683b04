"""A scheduler's view of its nodes, written to rows in a bounded number of statements whatever the cluster's size."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from django.db import transaction
from django.utils import timezone

from apps.inventory.models import (
    Accelerator,
    Cluster,
    Node,
    NodeState,
    NodeStateChange,
    Partition,
    WantedOfNode,
)


class View(Protocol):
    """jobs.schedulers.base.ClusterView, which stands above inventory."""

    nodes: Sequence[Any]
    partitions: Sequence[Any]
    notes: Sequence[str]


_PARTITION_FIELDS = (
    "is_default",
    "is_up",
    "max_time_s",
    "max_nodes_per_job",
    "max_cpus_per_node",
    "max_memory_bytes_per_node",
    "max_accelerators_per_node",
)
_NODE_FIELDS = ("state", "reason", "cpus", "memory_bytes", "cpus_used", "memory_bytes_used", "accelerator_count")
# What a node's type says of it, and how it is told.
_HARDWARE = {"cpus": "{} CPUs", "memory_bytes": "{} bytes of memory", "accelerator_count": "{} GPUs"}
_NOTES = 10
_BATCH = 2000


@transaction.atomic
def record_cluster_view(cluster: Cluster, view: View) -> None:
    """Bring partitions, nodes and accelerators up to what the scheduler says.

    A node it no longer lists becomes `unknown`, with the reason; it is not removed: a list can be short by mistake.
    Where a node has a type, the type's hardware stands; what the scheduler says else is noted on the cluster.
    """
    now = timezone.now()
    Cluster.objects.select_for_update().get(pk=cluster.pk)
    partitions = _record_partitions(cluster, view.partitions, now)
    nodes, differences = _record_nodes(cluster, view.nodes, now)
    notes = [note[:500] for note in (*view.notes, *_summed_up(differences))]
    Cluster.objects.filter(pk=cluster.pk).update(nodes_polled_at=now, notes=notes)
    _record_membership(nodes, partitions, view.nodes)
    _record_accelerators(nodes, view.nodes)


def _record_partitions(cluster: Cluster, observed: Sequence[Any], now: datetime) -> dict[str, Partition]:
    known = {p.name: p for p in Partition.objects.filter(cluster=cluster)}
    changed, new = [], []
    for one in observed:
        values = {name: getattr(one, name) for name in _PARTITION_FIELDS}
        row = known.get(one.name)
        if row is None:
            new.append(Partition(cluster=cluster, name=one.name, **values))
        elif row.retired_at is not None or any(getattr(row, name) != value for name, value in values.items()):
            for name, value in values.items():
                setattr(row, name, value)
            row.retired_at = None
            changed.append(row)
    listed = {one.name for one in observed}
    for row in known.values():
        if row.name not in listed and row.retired_at is None:
            row.retired_at = now
            changed.append(row)
    Partition.objects.bulk_update(changed, [*_PARTITION_FIELDS, "retired_at"])
    Partition.objects.bulk_create(new)
    return known | {row.name: row for row in new}


def _record_nodes(cluster: Cluster, observed: Sequence[Any], now: datetime) -> tuple[dict[str, Node], list[str]]:
    """The rows by name, and where the scheduler and the nodes' types differ."""
    differences: list[str] = []
    known = {n.name: n for n in Node.objects.filter(cluster=cluster)}
    changed: list[Node] = []
    new: list[Node] = []
    moved: list[Node] = []
    asked: set[int] = set()
    flipped: list[int] = []
    for one in observed:
        row = known.get(one.name)
        if row is None:
            row = Node(cluster=cluster, name=one.name)
            new.append(row)
        was = (row.state, list(row.flags), row.reason) if row.pk else None
        values = {name: getattr(one, name, None) for name in _NODE_FIELDS}
        values |= {"state": _state(one.state), "accelerator_count": _cards(one), "reason": one.reason[:500]}
        if row.node_type_id is not None:
            differences += _keep_hardware(row, values)
        flags = [flag[:30] for flag in one.flags]
        if was != (values["state"], flags, values["reason"]):
            row.state_since = now
            moved.append(row)
            if _is_what_was_asked(row, values, flags):
                asked.add(row.pk)
            elif row.wanted_error and ("drain" in flags) != ("drain" in row.flags):
                flipped.append(row.pk)
        if row.pk and (row.retired_at or row.flags != flags or any(getattr(row, n) != v for n, v in values.items())):
            changed.append(row)
        for name, value in values.items():
            setattr(row, name, value)
        row.flags, row.retired_at, row.seen_at = flags, None, now
    listed = {one.name for one in observed}
    for row in known.values():
        if row.name not in listed and row.seen_at is not None and row.state != NodeState.UNKNOWN:
            row.state, row.flags, row.state_since = NodeState.UNKNOWN, [], now
            row.reason = "the scheduler no longer lists this node"
            changed.append(row)
            moved.append(row)
    Node.objects.bulk_create(new, batch_size=_BATCH)
    fields = [*_NODE_FIELDS, "flags", "state_since", "retired_at"]
    # An upsert by id: bulk_update writes a CASE over every row and column, and takes ten times as long.
    Node.objects.bulk_create(
        changed, update_conflicts=True, unique_fields=["id"], update_fields=[*fields, "seen_at"], batch_size=_BATCH
    )
    Node.objects.filter(cluster=cluster, name__in=listed).update(seen_at=now)
    if flipped:  # it moved after all, so an old refusal is history
        Node.objects.filter(pk__in=flipped, wanted=WantedOfNode.NOTHING).update(wanted_error="")
    askers = dict(Node.objects.filter(pk__in=asked).values_list("pk", "wanted_by__username")) if asked else {}
    NodeStateChange.objects.bulk_create(
        [
            NodeStateChange(
                node=row,
                at=now,
                state=row.state,
                flags=row.flags,
                reason=row.reason or (row.wanted_reason if row.pk in asked else ""),
                source=(askers.get(row.pk) or cluster.name)[:100],
            )
            for row in moved
        ],
        batch_size=_BATCH,
    )
    return known | {row.name: row for row in new}, differences


def _is_what_was_asked(row: Node, values: dict[str, Any], flags: list[str]) -> bool:
    """Whether the change from `row` to what is seen now is the one an operator waits for."""
    was_drained, is_drained = "drain" in row.flags, "drain" in flags
    if row.wanted == WantedOfNode.DRAIN:
        return is_drained and (not was_drained or values["reason"] != row.reason)
    came_back = row.state == NodeState.DOWN and values["state"] != NodeState.DOWN
    return row.wanted == WantedOfNode.RESUME and not is_drained and (was_drained or came_back)


def _keep_hardware(row: Node, values: dict[str, Any]) -> list[str]:
    """Put what is known of the node's type over what the scheduler says; says in words where they differ."""
    said = []
    for name, word in _HARDWARE.items():
        ours, theirs = getattr(row, name), values[name]
        if ours is None:
            continue
        # Schedulers are told a little less memory than there is, to leave the system some.
        is_close = theirs is None or ours == theirs or (name == "memory_bytes" and 0.85 * ours <= theirs <= ours)
        if not is_close:
            said.append(f"{row.name}: {word.format(theirs)} by its scheduler, {word.format(ours)} by its type")
        values[name] = ours
    return said


def _summed_up(differences: list[str]) -> list[str]:
    more = len(differences) - _NOTES
    return [*differences[:_NOTES], *([f"{more:,} more nodes differ from their type."] if more > 0 else [])]


def _cards(one: Any) -> int:
    return len(one.accelerators) if one.accelerator_count is None else one.accelerator_count


def _state(text: str) -> str:
    return text if text in NodeState.values else NodeState.UNKNOWN


def _record_membership(nodes: dict[str, Node], partitions: dict[str, Partition], observed: Sequence[Any]) -> None:
    link = Node.partitions.through
    wanted = {
        (nodes[one.name].pk, partitions[name].pk) for one in observed for name in one.partitions if name in partitions
    }
    rows = link.objects.filter(partition__in=[p.pk for p in partitions.values()])
    present = {(node_pk, part_pk): pk for pk, node_pk, part_pk in rows.values_list("pk", "node_id", "partition_id")}
    missing = [link(node_id=node_pk, partition_id=part_pk) for node_pk, part_pk in wanted - present.keys()]
    link.objects.bulk_create(missing, batch_size=_BATCH, ignore_conflicts=True)
    listed = {nodes[one.name].pk for one in observed}
    left = [pk for pair, pk in present.items() if pair not in wanted and pair[0] in listed]
    link.objects.filter(pk__in=left).delete()


def _record_accelerators(nodes: dict[str, Node], observed: Sequence[Any]) -> None:
    """By UUID: a card that turns up in another node has been moved, and keeps its history."""
    seen = {card.uuid: (nodes[one.name], card) for one in observed for card in one.accelerators}
    if not seen:
        return
    known = {a.uuid: a for a in Accelerator.objects.filter(uuid__in=seen)}
    moved = [
        a
        for a in known.values()
        if a.retired_at is not None or (a.node_id, a.index) != (seen[a.uuid][0].pk, seen[a.uuid][1].index)
    ]
    # The places they move to must be free first: whatever stood there and was not seen has been taken out.
    now = timezone.now()
    in_use = {(node.pk, card.index) for node, card in seen.values()}
    gone = Accelerator.objects.filter(node__in={node.pk for node, _ in seen.values()}, retired_at__isnull=True)
    replaced = [old.pk for old in gone if old.uuid not in seen and (old.node_id, old.index) in in_use]
    Accelerator.objects.filter(pk__in=replaced).update(retired_at=now)
    if moved:
        Accelerator.objects.filter(pk__in=[a.pk for a in moved]).update(index=None)
        for accelerator in moved:
            accelerator.node, accelerator.index = seen[accelerator.uuid][0], seen[accelerator.uuid][1].index
            accelerator.retired_at = None
        Accelerator.objects.bulk_update(moved, ["node", "index", "retired_at"], batch_size=_BATCH)
    Accelerator.objects.bulk_create(
        [
            Accelerator(uuid=uuid, node=node, index=card.index, model=card.model, memory_bytes=card.memory_bytes)
            for uuid, (node, card) in seen.items()
            if uuid not in known
        ],
        batch_size=_BATCH,
    )

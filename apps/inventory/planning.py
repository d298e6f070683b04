"""A manifest beside the rows that are there: what would change, and what stands in its way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apps.core.errors import InvalidInput
from apps.inventory.diff import Key, Plan, diff
from apps.inventory.manifest import Manifest
from apps.inventory.models import (
    AcceleratorModel,
    Cluster,
    Hall,
    Node,
    NodeState,
    NodeType,
    Partition,
    Rack,
    Region,
    Site,
)

TYPE_FIELDS = ("vendor", "accelerators_per_node", "cpu_model", "cpus", "memory_bytes", "height_u", "power_max_w")
PARTITION_FIELDS = (
    "is_default",
    "max_time_s",
    "max_nodes_per_job",
    "max_cpus_per_node",
    "max_memory_bytes_per_node",
    "max_accelerators_per_node",
)
RACK_FIELDS = ("row", "place", "height_u", "power_limit_w")
NODE_FIELDS = ("position_u", "height_u", "face", "serial", "comment")
MODELS: Mapping[str, Any] = {
    "region": Region,
    "site": Site,
    "hall": Hall,
    "rack": Rack,
    "node type": NodeType,
    "cluster": Cluster,
    "partition": Partition,
    "node": Node,
}


@dataclass(frozen=True)
class Planned:
    """`rows` are all that the manifest may touch, the `retired` among them."""

    plan: Plan
    rows: dict[Key, Any]
    retired: frozenset[Key]


def plan_changes(manifest: Manifest) -> Planned:
    """Raises InvalidInput (field `manifest`) for what the rows do not allow."""
    present = _Present(manifest)
    wanted = _wanted(manifest, present.polled)
    wanted |= present.unplaced(wanted)
    plan = diff({key: present.values(key) for key in present.rows if present.is_ours(key, wanted)}, wanted)
    problems = [*_unknown_models(plan), *_stranded(manifest, plan, present), *_collisions(manifest, present)]
    if problems:
        raise InvalidInput({"manifest": problems})
    return Planned(plan, present.rows, frozenset(present.retired))


class _Present:
    """The rows under the regions and clusters that the manifest names, and their values as a manifest says them."""

    def __init__(self, manifest: Manifest) -> None:
        self.rows: dict[Key, Any] = {}
        self.retired: set[Key] = set()
        self.rack_paths: dict[int, tuple[str, ...]] = {}
        regions = list(manifest.regions)
        for region in Region.objects.filter(name__in=regions):
            self._know("region", (region.name,), region)
        for site in Site.objects.filter(region__name__in=regions).select_related("region"):
            self._know("site", (site.region.name, site.name), site)
        for hall in Hall.objects.filter(site__region__name__in=regions).select_related("site__region"):
            self._know("hall", (hall.site.region.name, hall.site.name, hall.name), hall)
        for rack in Rack.objects.filter(hall__site__region__name__in=regions).select_related("hall__site__region"):
            path = (rack.hall.site.region.name, rack.hall.site.name, rack.hall.name, rack.name)
            self.rack_paths[rack.pk] = path
            self._know("rack", path, rack)
        for node_type in NodeType.objects.select_related("accelerator_model"):
            self._know("node type", (node_type.name,), node_type)
        clusters = list(Cluster.objects.filter(name__in=manifest.clusters).select_related("site__region"))
        self.polled = {cluster.name for cluster in clusters if cluster.nodes_polled_at is not None}
        for cluster in clusters:
            self._know("cluster", (cluster.name,), cluster)
        partitions = Partition.objects.filter(cluster__in=clusters).select_related("cluster")
        for partition in partitions.prefetch_related("nodes"):
            self._know("partition", (partition.cluster.name, partition.name), partition)
        for node in Node.objects.filter(cluster__in=clusters).select_related("cluster", "node_type"):
            assert node.cluster is not None
            self._know("node", (node.cluster.name, node.name), node)

    def _know(self, kind: str, path: tuple[str, ...], row: Any) -> None:
        self.rows[kind, path] = row
        if getattr(row, "retired_at", None) is not None:
            self.retired.add((kind, path))

    def is_ours(self, key: Key, wanted: Mapping[Key, Any]) -> bool:
        """Whether the manifest has a say in this row; a retired one counts as not there."""
        kind, path = key
        if key in self.retired:
            return False
        if kind == "node type":
            return key in wanted
        if kind == "partition":
            return path[0] not in self.polled
        if kind == "node" and key not in wanted:
            row = self.rows[key]
            return row.rack_id is not None or row.node_type_id is not None or row.seen_at is None
        return True

    def unplaced(self, wanted: Mapping[Key, Any]) -> dict[Key, dict[str, Any]]:
        """Nodes that are no longer listed here but still by their scheduler: they stay, without place and type."""
        kept = {}
        for (kind, path), row in self.rows.items():
            if kind != "node" or (kind, path) in wanted or (kind, path) in self.retired:
                continue
            is_placed = row.rack_id is not None or row.node_type_id is not None
            if is_placed and row.seen_at is not None and row.state != NodeState.UNKNOWN:
                kept[kind, path] = self.values((kind, path)) | {"type": None, "rack": None, "position_u": None}
        return kept

    def values(self, key: Key) -> dict[str, Any]:
        kind, _path = key
        row = self.rows[key]
        if kind == "site":
            return {"time_zone": row.time_zone}
        if kind == "rack":
            return {name: getattr(row, name) for name in RACK_FIELDS}
        if kind == "node type":
            model = row.accelerator_model.name if row.accelerator_model else None
            return {"accelerator": model} | {name: getattr(row, name) for name in TYPE_FIELDS}
        if kind == "cluster":
            site = (row.site.region.name, row.site.name) if row.site else None
            return {"title": row.title, "scheduler": row.scheduler, "site": site}
        if kind == "partition":
            members = tuple(sorted(node.name for node in row.nodes.all()))
            return {name: getattr(row, name) for name in PARTITION_FIELDS} | {"nodes": members}
        if kind == "node":
            place = {"type": row.node_type.name if row.node_type else None, "rack": self._rack_path(row)}
            return place | {name: getattr(row, name) for name in NODE_FIELDS}
        return {}

    def _rack_path(self, node: Node) -> tuple[str, ...] | None:
        if node.rack_id is None:
            return None
        return self.rack_paths.get(node.rack_id) or ("", "", "", f"rack {node.rack_id}")


def _wanted(manifest: Manifest, polled: set[str]) -> dict[Key, dict[str, Any]]:
    wanted: dict[Key, dict[str, Any]] = {("region", (name,)): {} for name in manifest.regions}
    wanted |= {("site", path): {"time_zone": zone} for path, zone in manifest.sites.items()}
    wanted |= {("hall", path): {} for path in manifest.halls}
    for rack in manifest.racks.values():
        wanted["rack", rack.key] = {name: getattr(rack, name) for name in RACK_FIELDS}
    for kind in manifest.node_types.values():
        values = {"accelerator": kind.accelerator_model} | {name: getattr(kind, name) for name in TYPE_FIELDS}
        wanted["node type", (kind.name,)] = values
    for cluster in manifest.clusters.values():
        title = {"title": cluster.title} if cluster.title else {}
        wanted["cluster", (cluster.name,)] = title | {"scheduler": cluster.scheduler, "site": cluster.site}
        for node in cluster.nodes:
            values = {"type": node.node_type, "rack": node.rack}
            wanted["node", (cluster.name, node.name)] = values | {n: getattr(node, n) for n in NODE_FIELDS}
        for part in () if cluster.name in polled else cluster.partitions:
            values = {name: getattr(part, name) for name in PARTITION_FIELDS}
            wanted["partition", (cluster.name, part.name)] = values | {"nodes": tuple(sorted(part.nodes))}
    return wanted


def _unknown_models(plan: Plan) -> list[str]:
    models = {c.after.get("accelerator") for c in plan.changes if c.kind == "node type"} - {None}
    known = set(AcceleratorModel.objects.filter(name__in=models).values_list("name", flat=True))
    return [
        f"There is no accelerator {name!r} in the catalogue; load_catalogue fills it."
        for name in sorted(models - known)
    ]


def _stranded(manifest: Manifest, plan: Plan, present: _Present) -> list[str]:
    """Racks that would go while nodes the manifest has no say in stand in them."""
    racks = [present.rows[c.kind, c.path].pk for c in plan.changes if c.verb == "retire" and c.kind == "rack"]
    return [
        f"Rack {node.rack} is no longer listed, and node {node} of {node.cluster or 'no cluster'} stands in it."
        for node in _others(manifest, racks)[:20]
    ]


def _collisions(manifest: Manifest, present: _Present) -> list[str]:
    """Units that nodes the manifest has no say in fill already."""
    racks = {present.rows["rack", key].pk: key for key in manifest.racks if ("rack", key) in present.rows}
    taken: dict[tuple[tuple[str, ...], int], Node] = {}
    for other in _others(manifest, list(racks)):
        if other.rack_id is None or other.position_u is None:
            continue
        for unit in range(other.position_u, other.position_u + other.height_u):
            taken[racks[other.rack_id], unit] = other
    problems = []
    for node in (node for cluster in manifest.clusters.values() for node in cluster.nodes if taken):
        units = range(node.position_u, node.position_u + node.height_u) if node.rack and node.position_u else ()
        there = next((unit for unit in units if (node.rack, unit) in taken), None)
        if node.rack and there is not None:
            other = taken[node.rack, there]
            owner = other.cluster or "no cluster"
            problems.append(f"line {node.line}: U{there} of rack {node.rack[-1]} is filled by node {other} of {owner}.")
    return problems[:20]


def _others(manifest: Manifest, racks: list[int]) -> list[Node]:
    """Nodes in these racks of clusters that the manifest does not name, and of none."""
    standing = Node.objects.filter(rack__in=racks, retired_at__isnull=True).select_related("cluster", "rack")
    return [node for node in standing if node.cluster is None or node.cluster.name not in manifest.clusters]

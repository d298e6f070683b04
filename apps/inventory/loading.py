"""Bring the rows of places and nodes to what a manifest or a table says, and tell what changed.

The diff of a dry run is made by doing it and taking it back, so that it cannot differ from what happens.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.core.audit import record
from apps.core.errors import InvalidInput
from apps.core.permissions import require, site_roles
from apps.inventory.manifest import NodeEntry, RackEntry, SiteManifest
from apps.inventory.models import Cluster, Hall, Node, NodeState, NodeStateChange, NodeType, Rack, Region, Site

_BATCH = 2000
_NODE_FIELDS = ("rack_id", "position_u", "height_u", "face", "node_type_id", "serial", "comment")


@dataclass(frozen=True)
class Change:
    """`action` is add, change or retire; `detail` says from what to what."""

    action: str
    kind: str
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.action:<6} {self.kind} {self.name}" + (f": {self.detail}" if self.detail else "")


class _TakenBack(Exception):
    """Ends the transaction of a dry run."""


def load_manifest(manifest: SiteManifest, *, by: Any, dry_run: bool = False) -> list[Change]:
    """All or nothing. Nodes of the site's halls that are no longer listed are retired, never deleted.

    `by` None is the command line of the server. Raises NotAllowed, and InvalidInput for what only the rows can tell.
    """
    if by is not None:
        require("inventory.edit", site_roles(by))
    changes: list[Change] = []
    try:
        with transaction.atomic():
            changes = _load(manifest)
            if changes and not dry_run:
                site = Site.objects.get(region__name=manifest.region, name=manifest.site)
                record("manifest.load", by=by, target=site, after={"changes": len(changes)})
            if dry_run:
                raise _TakenBack
    except _TakenBack:
        pass
    except IntegrityError as error:
        raise InvalidInput({"manifest": f"two nodes would stand in one place: {str(error).splitlines()[0]}"}) from None
    return changes


def _load(manifest: SiteManifest) -> list[Change]:
    changes: list[Change] = []
    region, is_new = Region.objects.get_or_create(name=manifest.region)
    _note(changes, is_new, "region", region.name)
    site, is_new = Site.objects.get_or_create(
        region=region, name=manifest.site, defaults={"time_zone": manifest.time_zone}
    )
    _note(changes, is_new, "site", site.name)
    changes += _update(site, "site", {"time_zone": manifest.time_zone})
    clusters: dict[str, Cluster] = {}
    for entry in manifest.clusters:
        values = {"title": entry.title, "scheduler": entry.scheduler, "site": site}
        # A cluster from a manifest is a place first; it is polled once an operator has told how, and switched it on.
        cluster, is_new = Cluster.objects.get_or_create(name=entry.name, defaults={**values, "is_enabled": False})
        _note(changes, is_new, "cluster", cluster.name)
        if not is_new:
            changes += _update(cluster, "cluster", {"title": entry.title, "site": site})
        clusters[entry.name] = cluster
    racks: dict[str, tuple[Rack, RackEntry]] = {}
    for hall_entry in manifest.halls:
        hall, is_new = Hall.objects.get_or_create(site=site, name=hall_entry.name)
        _note(changes, is_new, "hall", hall.name)
        changes += _load_racks(hall, hall_entry.racks, racks)
    placed = [(entry, rack) for rack, rack_entry in racks.values() for entry in rack_entry.nodes]
    changes += _load_nodes(placed, clusters)
    changes += _retire(site, {(clusters[e.cluster].pk if e.cluster else None, e.name) for e, _ in placed})
    return changes


def _load_racks(hall: Hall, entries: Iterable[RackEntry], racks: dict[str, tuple[Rack, RackEntry]]) -> list[Change]:
    changes = []
    known = {rack.name: rack for rack in Rack.objects.filter(hall=hall)}
    new = []
    for entry in entries:
        values = {
            "row": entry.row,
            "place": entry.place,
            "height_u": entry.height_u,
            "power_limit_w": entry.power_limit_w,
        }
        rack = known.get(entry.name)
        if rack is None:
            rack = Rack(hall=hall, name=entry.name, **values)
            new.append(rack)
            changes.append(Change("add", "rack", f"{hall.name}/{entry.name}"))
        else:
            changes += _update(rack, "rack", values)
        racks[f"{hall.name}/{entry.name}"] = (rack, entry)
    Rack.objects.bulk_create(new, batch_size=_BATCH)
    return changes


def _load_nodes(placed: list[tuple[NodeEntry, Rack]], clusters: dict[str, Cluster]) -> list[Change]:
    types = {t.name: t for t in NodeType.objects.all()}
    names = [entry.name for entry, _ in placed]
    known = {(n.cluster_id, n.name): n for n in Node.objects.filter(name__in=names).select_related("node_type", "rack")}
    changes: list[Change] = []
    new: list[Node] = []
    moved: list[Node] = []
    for entry, rack in placed:
        cluster = clusters[entry.cluster] if entry.cluster else None
        node_type = types.get(entry.type) if entry.type else None
        values = {
            "rack_id": rack.pk,
            "position_u": entry.position_u,
            "height_u": entry.height_u,
            "face": entry.face,
            "node_type_id": node_type.pk if node_type else None,
            "serial": entry.serial,
            "comment": entry.comment,
        }
        node = known.get((cluster.pk if cluster else None, entry.name))
        if node is None:
            node = Node(cluster=cluster, name=entry.name, state=NodeState.PLANNED, **values)
            if node_type is not None:
                node.memory_bytes, node.cpus = node_type.memory_bytes, node_type.cpus
                node.accelerator_count = node_type.accelerators_per_node
            new.append(node)
            changes.append(Change("add", "node", entry.name, f"rack {rack.name}, U {entry.position_u or '—'}"))
            continue
        words = [
            f"{name.removesuffix('_id')} {getattr(node, name) or '—'} → {value or '—'}"
            for name, value in values.items()
            if getattr(node, name) != value
        ]
        if words or node.retired_at is not None:
            changes.append(Change("change", "node", entry.name, ", ".join(words) or "is back"))
            for name, value in values.items():
                setattr(node, name, value)
            node.retired_at = None
            moved.append(node)
    # Two nodes may swap places, so all that move are lifted out first.
    Node.objects.filter(pk__in=[node.pk for node in moved]).update(rack=None, position_u=None)
    fields = [name.removesuffix("_id") for name in _NODE_FIELDS]
    Node.objects.bulk_update(moved, [*fields, "retired_at"], batch_size=_BATCH)
    Node.objects.bulk_create(new, batch_size=_BATCH)
    now = timezone.now()
    NodeStateChange.objects.bulk_create(
        [
            NodeStateChange(node=n, at=now, state=n.state, reason="listed in the manifest", source="manifest")
            for n in new
        ],
        batch_size=_BATCH,
    )
    return changes


def _retire(site: Site, listed: set[tuple[int | None, str]]) -> list[Change]:
    now, gone = timezone.now(), []
    for node in Node.objects.filter(rack__hall__site=site, retired_at__isnull=True).select_related("rack"):
        if (node.cluster_id, node.name) not in listed:
            gone.append(node)
    Node.objects.filter(pk__in=[node.pk for node in gone]).update(retired_at=now)
    NodeStateChange.objects.bulk_create(
        [NodeStateChange(node=n, at=now, state="retired", reason="no longer listed", source="manifest") for n in gone]
    )
    return [Change("retire", "node", node.name, f"rack {node.rack}") for node in gone]


def _update(row: Any, kind: str, values: dict[str, Any]) -> list[Change]:
    words = [f"{name} {getattr(row, name)} → {value}" for name, value in values.items() if getattr(row, name) != value]
    if not words:
        return []
    for name, value in values.items():
        setattr(row, name, value)
    row.save(update_fields=list(values))
    return [Change("change", kind, row.name, ", ".join(words))]


def _note(changes: list[Change], is_new: bool, kind: str, name: str) -> None:
    if is_new:
        changes.append(Change("add", kind, name))


# -- tables -----------------------------------------------------------------------------------------------------------

_COLUMNS = ("name", "cluster", "rack", "position", "face", "u_height", "serial", "comment", "node_type")


def import_nodes(data: bytes, hall: Hall, *, by: Any, dry_run: bool = False) -> list[Change]:
    """Nodes from a CSV table with a header: name, and any of cluster, rack, position, face, u_height, serial, comment,
    node_type; other columns are left alone. Racks that are missing in the hall are made. All or nothing.
    """
    if by is not None:
        require("inventory.edit", site_roles(by))
    entries = list(_read_table(data))
    changes: list[Change] = []
    try:
        with transaction.atomic():
            clusters = {c.name: c for c in Cluster.objects.all()}
            unknown = {e.cluster for e, _ in entries if e.cluster and e.cluster not in clusters}
            for name in sorted(unknown):
                clusters[name] = Cluster.objects.create(name=name, scheduler="none", is_enabled=False, site=hall.site)
                changes.append(Change("add", "cluster", name))
            racks: dict[str, tuple[Rack, RackEntry]] = {}
            known = {r.name: r.height_u for r in Rack.objects.filter(hall=hall)}
            wanted = [
                RackEntry(name, height_u=known.get(name, 42)) for name in dict.fromkeys(r for _, r in entries if r)
            ]
            changes += _load_racks_by_name(hall, wanted, racks)
            changes += _load_nodes([(e, racks[f"{hall.name}/{r}"][0]) for e, r in entries if r], clusters)
            record("nodes.import", by=by, target=hall, after={"nodes": len(entries), "changes": len(changes)})
            if dry_run:
                raise _TakenBack
    except _TakenBack:
        pass
    except IntegrityError as error:
        raise InvalidInput({"file": f"two nodes would stand in one place: {str(error).splitlines()[0]}"}) from None
    return changes


def _load_racks_by_name(hall: Hall, entries: list[RackEntry], racks: dict[str, tuple[Rack, RackEntry]]) -> list[Change]:
    """A table knows racks by name only: what else is known of one stays."""
    present = {rack.name: rack for rack in Rack.objects.filter(hall=hall)}
    missing = [entry for entry in entries if entry.name not in present]
    changes = _load_racks(hall, missing, racks)
    racks |= {f"{hall.name}/{e.name}": (present[e.name], e) for e in entries if e.name in present}
    return changes


def _read_table(data: bytes) -> Iterable[tuple[NodeEntry, str]]:
    try:
        # A byte order mark is not part of the first column's name.
        text = data.decode("utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput({"file": f"this is not UTF-8 text (byte {error.start})."}) from None
    first = text.splitlines()[0] if text.strip() else ""
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=";" if first.count(";") > first.count(",") else ","
    )
    header = [name.strip().lower() for name in reader.fieldnames or []]
    reader.fieldnames = header
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InvalidInput({"file": f"line 1: the column {twice!r} is there twice."})
    for name in ("name", "rack"):
        if name not in header:
            raise InvalidInput({"file": f"line 1: there is no column {name!r}; there is: {', '.join(header)[:200]}."})
    problems = []
    for row in reader:
        values = {name: (row.get(name) or "").strip() for name in _COLUMNS}
        line = reader.line_num
        if not any(values.values()):
            continue
        try:
            yield _entry(values, line), values["rack"]
        except InvalidInput as error:
            problems += error.fields["file"]
    if problems:
        raise InvalidInput({"file": problems})


def _entry(values: dict[str, str], line: int) -> NodeEntry:
    def number(name: str) -> int | None:
        text = values[name]
        if not text:
            return None
        if not text.isdecimal() or not 1 <= int(text) <= 100:
            raise InvalidInput({"file": f"line {line}: {name} {text[:20]!r} is no whole number from 1 to 100."})
        return int(text)

    if not values["name"] or not values["rack"]:
        raise InvalidInput({"file": f"line {line}: name and rack must both be given."})
    return NodeEntry(
        name=values["name"],
        type=values["node_type"] or None,
        cluster=values["cluster"] or None,
        position_u=number("position"),
        height_u=number("u_height") or 1,
        face=values["face"] or "front",
        serial=values["serial"],
        comment=values["comment"],
    )

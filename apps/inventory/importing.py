"""Nodes from a spreadsheet: rows added or brought up to date, all or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import transaction

from apps.core.errors import InvalidInput
from apps.core.permissions import require, site_roles
from apps.inventory.editing import add_thing, edit_thing
from apps.inventory.models import Cluster, Hall, Node, NodeType, Rack
from apps.inventory.nodes_csv import NodeRow, parse_nodes_csv


@dataclass(frozen=True)
class Imported:
    added: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: int

    def summary(self) -> str:
        return f"{len(self.added):,} nodes added, {len(self.changed):,} changed, {self.unchanged:,} as they were"


@transaction.atomic
def import_nodes(data: bytes, *, hall: Hall | None = None, by: Any) -> Imported:
    """`hall` is where the named racks stand; without it, a rack's name must be unique among all halls.

    A rack that is not there is made, in `hall`.
    `by` None is the command line. Raises InvalidInput (field `file`) with the line of each mistake.
    """
    if by is not None:
        require("inventory.edit", site_roles(by))
    rows = parse_nodes_csv(data)
    clusters = {cluster.name: cluster for cluster in Cluster.objects.all()}
    types = {kind.name.casefold(): kind for kind in NodeType.objects.all()}
    problems: list[str] = []
    added, changed, unchanged = [], [], 0
    for row in rows:
        try:
            cluster = _cluster(row, clusters)
            values = _values(row, types, hall, by)
            node = Node.objects.filter(cluster=cluster, name=row.name, retired_at__isnull=True).first()
            if node is None:
                add_thing(Node, {"cluster": cluster, "name": row.name, **values}, by=by)
                added.append(row.name)
            elif any(getattr(node, name) != value for name, value in values.items()):
                edit_thing(node, values, by=by)
                changed.append(row.name)
            else:
                unchanged += 1
        except InvalidInput as error:  # the next rows may be wrong as well, and are told at once
            problems += [f"line {row.line}: {name}: {text}" for name, texts in error.fields.items() for text in texts]
        if len(problems) >= 50:
            break
    if problems:
        raise InvalidInput({"file": problems})
    return Imported(tuple(added), tuple(changed), unchanged)


def _cluster(row: NodeRow, clusters: dict[str, Cluster]) -> Cluster | None:
    if not row.cluster:
        return None
    if row.cluster not in clusters:
        raise InvalidInput({"cluster": f"There is no cluster {row.cluster!r}."})
    return clusters[row.cluster]


def _values(row: NodeRow, types: dict[str, NodeType], hall: Hall | None, by: Any) -> dict[str, Any]:
    """What the row says; what it does not say is left as it is."""
    kind = types.get((row.node_type or row.model).casefold())
    if row.node_type and kind is None:
        raise InvalidInput({"node_type": f"There is no node type {row.node_type!r}."})
    values: dict[str, Any] = {
        "node_type": kind,
        "rack": _rack(row, hall, by),
        "position_u": row.position_u,
        "height_u": row.height_u,
        "serial": row.serial or None,
        "comment": row.comment or None,
        "accelerator_count": row.accelerator_count,
        "face": row.face,
    }
    return {name: value for name, value in values.items() if value is not None}


def _rack(row: NodeRow, hall: Hall | None, by: Any) -> Rack | None:
    if not row.rack:
        return None
    found = Rack.objects.filter(name=row.rack, retired_at__isnull=True)
    racks = list((found.filter(hall=hall) if hall else found)[:2])
    if len(racks) == 1:
        return racks[0]
    if racks:
        raise InvalidInput({"rack": f"There are several racks {row.rack!r}; choose the hall they stand in."})
    if hall is None:
        raise InvalidInput({"rack": f"There is no rack {row.rack!r}; choose the hall in which to make it."})
    rack: Rack = add_thing(Rack, {"hall": hall, "name": row.rack}, by=by)
    return rack

"""A site manifest put into rows: what would change, and the change itself in one transaction.

A manifest speaks of the regions and clusters it names and of nothing else. What it no longer lists there is retired,
except a node its scheduler still lists: that one loses its place and type and stays. Partitions of a cluster whose
scheduler has answered are the scheduler's own; the manifest's are for the time before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from apps.core.audit import audit_fields
from apps.core.models import AuditEntry
from apps.core.permissions import require, site_roles
from apps.inventory.diff import Change, Plan
from apps.inventory.manifest import Manifest, parse_manifest
from apps.inventory.models import AcceleratorModel, Node, NodeState, NodeStateChange, NodeType
from apps.inventory.planning import MODELS, NODE_FIELDS, PARTITION_FIELDS, RACK_FIELDS, Planned, plan_changes

BATCH = 2000


def read_manifest(data: bytes, *, file: str) -> Manifest:
    """Parse it, with the node types of the catalogue known. Raises ManifestError."""
    types = dict(NodeType.objects.values_list("name", "height_u"))
    return parse_manifest(data, file=file, known_types=types)


def plan_manifest(manifest: Manifest) -> Plan:
    """What loading it would change. Raises InvalidInput for what cannot be done."""
    return plan_changes(manifest).plan


@transaction.atomic
def load_manifest(manifest: Manifest, *, by: Any) -> Plan:
    """Change what differs, all or nothing; loading the same again changes nothing. `by` None is the command line."""
    if by is not None:
        require("inventory.edit", site_roles(by))
    # One load at a time: two that each see the other's half would both be wrong.
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('switchyard.manifest'))")
    planned = plan_changes(manifest)
    _Writer(planned).write()
    _write_audit(planned, by)
    return planned.plan


class _Writer:
    def __init__(self, planned: Planned) -> None:
        self.plan, self.rows, self.retired = planned.plan, planned.rows, planned.retired
        self.now = timezone.now()

    def write(self) -> None:
        for change in self.plan.changes:
            if change.verb != "retire" and change.kind not in {"node", "partition", "rack"}:
                self._save_one(change)
        self._save_many("rack", ("hall", *RACK_FIELDS))
        gone = [self.rows["node", c.path].pk for c in self.plan.changes if c.verb == "retire" and c.kind == "node"]
        Node.objects.filter(pk__in=gone).update(retired_at=self.now, updated_at=self.now)
        self._save_nodes()
        self._save_many("partition", ("cluster", *PARTITION_FIELDS))
        for change in self.plan.changes:
            if change.verb == "retire" and change.kind != "node":
                row = self.rows[change.kind, change.path]
                type(row).objects.filter(pk=row.pk).update(retired_at=self.now, updated_at=self.now)
            elif change.kind == "partition" and "nodes" in change.after:
                members = [self.rows["node", (change.path[0], name)].pk for name in change.after["nodes"]]
                self.rows["partition", change.path].nodes.set(members)

    def _save_one(self, change: Change) -> None:
        key = (change.kind, change.path)
        row = self.rows.get(key) or MODELS[change.kind](name=change.path[-1])
        for name, value in self._columns(change).items():
            setattr(row, name, value)
        if change.kind == "cluster" and row.pk is None:
            row.is_enabled = False  # an operator switches it on once its scheduler can be reached
        if key in self.retired:
            row.retired_at = None
        row.save()
        self.rows[key] = row

    def _save_many(self, kind: str, fields: Iterable[str]) -> None:
        new, changed = [], []
        for change in self.plan.changes:
            if change.kind != kind or change.verb == "retire":
                continue
            row = self.rows.get((kind, change.path))
            (new if row is None else changed).append(row := row or MODELS[kind](name=change.path[-1]))
            for name, value in self._columns(change).items():
                setattr(row, name, value)
            if change.verb == "add":
                self._begin(row)
            row.updated_at = self.now
            self.rows[kind, change.path] = row
        model: Any = MODELS[kind]
        model.objects.bulk_create(new, batch_size=BATCH)
        model.objects.bulk_update(changed, [*fields, "retired_at", "updated_at"], batch_size=BATCH)

    def _begin(self, row: Any) -> None:
        """A thing that is new, or comes back."""
        row.retired_at = None
        if isinstance(row, Node):
            row.state, row.reason, row.flags, row.state_since = NodeState.PLANNED, "", [], self.now

    def _columns(self, change: Change) -> dict[str, Any]:
        """A change's values as a row holds them: names of other things become rows, and the parent comes along."""
        values = dict(change.after)
        values.pop("nodes", None)
        parent = {"site": "region", "hall": "site", "rack": "hall"}.get(change.kind)
        if parent:
            values[parent] = self.rows[parent, change.path[:-1]]
        if change.kind in {"partition", "node"}:
            values["cluster"] = self.rows["cluster", change.path[:1]]
        if change.kind == "cluster" and "site" in values:
            values["site"] = self.rows["site", values["site"]]
        if change.kind == "node type" and "accelerator" in values:
            name = values.pop("accelerator")
            values["accelerator_model"] = AcceleratorModel.objects.get(name=name) if name else None
        if "rack" in values:
            values["rack"] = self.rows["rack", values["rack"]] if values["rack"] else None
        if "type" in values:
            kind = values.pop("type")
            values["node_type"] = self.rows["node type", (kind,)] if kind else None
        return values

    def _save_nodes(self) -> None:
        mine = [change for change in self.plan.changes if change.kind == "node" and change.verb != "retire"]
        # Nodes that change places must all leave theirs first, or two that swap would stand in each other's way.
        moving = [c for c in mine if not {"rack", "position_u", "height_u"}.isdisjoint(c.after)]
        leaving = [self.rows["node", c.path].pk for c in moving if ("node", c.path) in self.rows]
        Node.objects.filter(pk__in=leaving).update(position_u=None)
        fields = ("cluster", "node_type", "rack", *NODE_FIELDS, "state", "reason", "flags", "state_since")
        self._save_many("node", fields)
        begun = [self.rows["node", change.path] for change in mine if change.verb == "add"]
        NodeStateChange.objects.bulk_create(
            [NodeStateChange(node=node, at=self.now, state=node.state, source="manifest") for node in begun],
            batch_size=BATCH,
        )
        self._copy_hardware()

    def _copy_hardware(self) -> None:
        """A node has what its type says; what the type leaves open is for the scheduler to tell."""
        changed = []
        for (kind, _path), node in self.rows.items():
            if kind != "node" or node.node_type is None:
                continue
            of_type = node.node_type
            facts = {
                "cpus": of_type.cpus or node.cpus,
                "memory_bytes": of_type.memory_bytes or node.memory_bytes,
                "accelerator_count": of_type.accelerators_per_node,
            }
            if any(getattr(node, name) != value for name, value in facts.items()):
                for name, value in facts.items():
                    setattr(node, name, value)
                changed.append(node)
        Node.objects.bulk_update(changed, ["cpus", "memory_bytes", "accelerator_count"], batch_size=BATCH)


def _write_audit(planned: Planned, by: Any) -> None:
    """A row for each thing that changed, so that each has its whole history."""
    entries = [
        AuditEntry(
            **audit_fields(
                f"{change.kind.replace(' ', '_')}.{'edit' if change.verb == 'change' else change.verb}",
                by=by,
                target=planned.rows[change.kind, change.path],
                before=change.before,
                after=change.after,
            )
        )
        for change in planned.plan.changes
    ]
    AuditEntry.objects.bulk_create(entries, batch_size=BATCH)

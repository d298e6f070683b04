"""Operators' edits by hand of places, node types and nodes. Each is checked, locked, and written to the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import available_timezones

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Model
from django.utils import timezone

from apps.core.audit import record
from apps.core.errors import Conflict, InvalidInput
from apps.core.permissions import require, site_roles
from apps.inventory.models import Hall, Node, NodeState, NodeStateChange, NodeType, Rack, Region, Site

# What may be set by hand. A node's state is its scheduler's to tell.
FIELDS: Mapping[type[Model], tuple[str, ...]] = {
    Region: ("name",),
    Site: ("region", "name", "time_zone"),
    Hall: ("site", "name"),
    Rack: ("hall", "name", "row", "place", "height_u", "power_limit_w"),
    NodeType: (
        "name",
        "vendor",
        "accelerator_model",
        "accelerators_per_node",
        "cpu_model",
        "cpus",
        "memory_bytes",
        "nics_per_node",
        "nic_bits_per_s",
        "fabric",
        "power_max_w",
        "height_u",
        "source",
    ),
    Node: (
        "cluster",
        "name",
        "node_type",
        "rack",
        "position_u",
        "height_u",
        "face",
        "serial",
        "comment",
        "cpus",
        "memory_bytes",
        "accelerator_count",
    ),
}
# What only the database knows for sure, since others write at the same time; said where it can be mended.
_TAKEN = "There is one of this name here already."
_CONSTRAINTS = {
    "node_place_is_free": ("position_u", "Another node stands in these units of the rack."),
    "rack_height_sane": ("height_u", "A rack has 1 to 100 units."),
    "node_height_positive": ("height_u", "A node fills at least one unit."),
}
_INSIDE: Mapping[type[Model], tuple[type[Model], str]] = {
    Region: (Site, "region"),
    Site: (Hall, "site"),
    Hall: (Rack, "hall"),
    Rack: (Node, "rack"),
}


@transaction.atomic
def add_thing(model: type[Model], values: Mapping[str, Any], *, by: Any) -> Any:
    """A new place, node type or node; a retired one of the same name and parent comes back with these values."""
    _require_operator(by)
    row: Any = _retired_namesake(model, values) or model()
    row.retired_at = None
    if isinstance(row, Node):
        row.state, row.reason, row.flags, row.state_since = NodeState.PLANNED, "", [], timezone.now()
        if row.node_type is None and values.get("node_type") is not None:
            values = _with_type_facts(values)
    _set(row, values)
    if isinstance(row, Node):
        NodeStateChange.objects.create(node=row, at=row.state_since, state=row.state, source=_name_of(by))
    record(f"{_noun(row)}.add", by=by, target=row, after=_shown(row, FIELDS[model]))
    return row


@transaction.atomic
def edit_thing(row: Any, values: Mapping[str, Any], *, by: Any) -> Any:
    """Only what differs is recorded. Raises InvalidInput, with `position_u` where another node stands in the way."""
    _require_operator(by)
    row = type(row).objects.select_for_update().get(pk=row.pk)
    if getattr(row, "retired_at", None) is not None:
        raise Conflict(f"{row} is retired; add it again to bring it back.")
    before = _shown(row, values)
    _set(row, values)
    after = _shown(row, values)
    changed = [name for name in values if before[name] != after[name]]
    if changed:
        record(
            f"{_noun(row)}.edit",
            by=by,
            target=row,
            before={name: before[name] for name in changed},
            after={name: after[name] for name in changed},
        )
    return row


@transaction.atomic
def retire_thing(row: Any, *, by: Any) -> None:
    """A place must be empty first. A node that its scheduler still lists would come back at once: a conflict."""
    _require_operator(by)
    model = type(row)
    row = model.objects.select_for_update().get(pk=row.pk)
    if model not in _INSIDE and model is not Node:
        raise Conflict(f"{row} cannot be retired.")
    if row.retired_at is not None:
        return
    if isinstance(row, Node):
        if row.seen_at is not None and row.state != NodeState.UNKNOWN:
            raise Conflict(f"{row.cluster} still lists {row}; take it out of the scheduler's configuration first.")
    else:
        inner, parent = _INSIDE[model]
        count = inner._default_manager.filter(**{parent: row, "retired_at__isnull": True}).count()
        if count:
            noun = str(inner._meta.verbose_name)
            raise Conflict(f"It still holds {count:,} {noun}{'' if count == 1 else 's'}; move or retire them first.")
    model.objects.filter(pk=row.pk).update(retired_at=timezone.now(), updated_at=timezone.now())
    record(f"{_noun(row)}.retire", by=by, target=row, before=_shown(row, FIELDS[model]))


def _require_operator(by: Any) -> None:
    """`by` None is the command line of the server."""
    if by is not None:
        require("inventory.edit", site_roles(by))


def _set(row: Any, values: Mapping[str, Any]) -> None:
    unknown = set(values) - set(FIELDS[type(row)])
    if unknown:
        raise InvalidInput(dict.fromkeys(sorted(unknown), "This cannot be set by hand."))
    for name, value in values.items():
        setattr(row, name, value)
    problems = _problems(row)
    if problems:
        raise InvalidInput(problems)
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        field, said = next((told for name, told in _CONSTRAINTS.items() if name in str(error)), ("name", _TAKEN))
        raise InvalidInput({field: said}) from None


def _problems(row: Any) -> dict[str, list[str]]:
    problems: dict[str, list[str]] = {}
    try:
        others = [one.name for one in row._meta.fields if one.name not in FIELDS[type(row)]]
        row.full_clean(exclude=others, validate_constraints=False)
    except ValidationError as error:
        problems |= error.message_dict
    if isinstance(row, Site) and row.time_zone not in available_timezones():
        problems["time_zone"] = [f"There is no time zone {row.time_zone!r}; write it like Europe/Stockholm."]
    if isinstance(row, Node):
        problems |= _place_problems(row)
    if isinstance(row, Rack) and row.pk is not None:
        top = max((n.position_u + n.height_u - 1 for n in row.nodes.filter(retired_at=None) if n.position_u), default=0)
        if row.height_u < top:
            problems["height_u"] = [f"A node stands up to U{top} of this rack."]
    return problems


def _place_problems(node: Node) -> dict[str, list[str]]:
    """Who stands there already, in words; the database's own constraint is behind it."""
    if node.position_u is None:
        return {}
    if node.rack is None:
        return {"rack": ["Say in which rack the position is."]}
    top_u = node.position_u + node.height_u - 1
    if node.position_u < 1 or top_u > node.rack.height_u:
        said = f"It would fill U{node.position_u}-{top_u}; the rack has U1-{node.rack.height_u}."
        return {"position_u": [said]}
    others = Node.objects.filter(rack=node.rack, position_u__isnull=False, retired_at__isnull=True).exclude(pk=node.pk)
    for other in others:
        assert other.position_u is not None
        other_top_u = other.position_u + other.height_u - 1
        if other.position_u <= top_u and node.position_u <= other_top_u:
            return {"position_u": [f"{other} stands in U{other.position_u}-{other_top_u} of this rack."]}
    return {}


def _retired_namesake(model: type[Model], values: Mapping[str, Any]) -> Any:
    if model is NodeType:
        return None
    parent = {Site: "region", Hall: "site", Rack: "hall", Node: "cluster"}.get(model)
    same = {"name": values.get("name")} | ({parent: values.get(parent)} if parent else {})
    return model._default_manager.filter(retired_at__isnull=False, **same).first()


def _with_type_facts(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the type says of the hardware, unless it is said of the node itself."""
    kind = values["node_type"]
    facts = {
        "cpus": kind.cpus,
        "memory_bytes": kind.memory_bytes,
        "accelerator_count": kind.accelerators_per_node,
        "height_u": kind.height_u,
    }
    return facts | {name: value for name, value in values.items() if value is not None or name not in facts}


def _name_of(by: Any) -> str:
    return "switchyard" if by is None else by.get_username()[:100]


def _noun(row: Any) -> str:
    return {NodeType: "node_type"}.get(type(row), row._meta.model_name)


def _shown(row: Any, names: Any) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in names}
    return {name: str(value) if isinstance(value, Model) else value for name, value in values.items()}

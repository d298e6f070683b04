"""What a manifest would change: things as they are and as they are wanted, compared. Pure.

A thing is a key (kind, path of names) with its values; the paths are what people call it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Key = tuple[str, tuple[str, ...]]
Things = Mapping[Key, Mapping[str, Any]]

# In this order things are made: what others stand in comes first; retiring goes the other way.
KINDS: Final = ("region", "site", "hall", "rack", "node type", "cluster", "partition", "node")


@dataclass(frozen=True)
class Change:
    """`before` and `after` hold only the values that differ; `add` has no before, `retire` no after."""

    verb: Literal["add", "change", "retire"]
    kind: str
    path: tuple[str, ...]
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return " / ".join(self.path)

    @property
    def words(self) -> str:
        """`position_u 1 -> 9`; nothing for what is added or retired."""
        if self.verb != "change":
            return ""
        return ", ".join(f"{name} {shown(self.before[name])} -> {shown(self.after[name])}" for name in self.after)

    def __str__(self) -> str:
        """`~ node alpha / gpu001: position_u 1 -> 9`"""
        mark = {"add": "+", "change": "~", "retire": "-"}[self.verb]
        words = self.words
        return f"{mark} {self.kind} {self.name}: {words}" if words else f"{mark} {self.kind} {self.name}"


@dataclass(frozen=True)
class Plan:
    changes: tuple[Change, ...]

    def summary(self) -> str:
        """`3 racks and 24 nodes to add, 1 node to change`; `nothing to change`."""
        parts = []
        for verb in ("add", "change", "retire"):
            counts = Counter(change.kind for change in self.changes if change.verb == verb)
            words = [f"{counts[kind]:,} {kind}{'' if counts[kind] == 1 else 's'}" for kind in KINDS if counts[kind]]
            if words:
                parts.append(f"{' and '.join(filter(None, [', '.join(words[:-1]), words[-1]]))} to {verb}")
        return "; ".join(parts) or "nothing to change"


def diff(present: Things, wanted: Things) -> Plan:
    """Adds and changes in the order they are made, then what is retired, innermost first."""
    rank = {kind: number for number, kind in enumerate(KINDS)}
    changes: list[Change] = []
    for key, values in sorted(wanted.items(), key=lambda item: (rank[item[0][0]], item[0][1])):
        kind, path = key
        if key not in present:
            changes.append(Change("add", kind, path, after=dict(values)))
            continue
        now = present[key]
        after = {name: value for name, value in values.items() if now.get(name) != value}
        if after:
            changes.append(Change("change", kind, path, {name: now.get(name) for name in after}, after))
    gone = sorted(present.keys() - wanted.keys(), key=lambda key: (-rank[key[0]], key[1]))
    changes += [Change("retire", kind, path, before=dict(present[kind, path])) for kind, path in gone]
    return Plan(tuple(changes))


def shown(value: Any) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, tuple | list):
        return " / ".join(str(part) for part in value) or "none"
    return str(value)

"""The site manifest: a YAML file that says what a site is made of, read into dataclasses. Pure.

Every value is checked, and every mistake is told with its line and the path of its field; see examples/site.yaml for
the form. What it says of machines and places wins over what a scheduler reports; a node's state is the scheduler's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from zoneinfo import available_timezones

import yaml

from apps.core.errors import InvalidInput
from apps.core.units import parse_duration, parse_memory
from apps.inventory.marked_yaml import Problem, Reader, Unreadable, compose, line_of
from apps.inventory.noderange import MAX_NAMES, is_range, node_names

MAX_RACKS = 5_000
MAX_U = 100
_BIG = 2**31 - 1

RackKey = tuple[str, str, str, str]


@dataclass(frozen=True)
class RackEntry:
    """`key` is region, site, hall, rack."""

    key: RackKey
    row: str
    place: int | None
    height_u: int
    power_limit_w: int | None
    line: int


@dataclass(frozen=True)
class NodeTypeEntry:
    name: str
    vendor: str
    accelerator_model: str | None
    accelerators_per_node: int
    cpu_model: str
    cpus: int | None
    memory_bytes: int | None
    height_u: int
    power_max_w: int | None
    line: int


@dataclass(frozen=True)
class NodeEntry:
    name: str
    node_type: str | None
    rack: RackKey | None
    position_u: int | None
    height_u: int
    face: str
    serial: str
    comment: str
    line: int


@dataclass(frozen=True)
class PartitionEntry:
    name: str
    is_default: bool
    max_time_s: int | None
    max_nodes_per_job: int | None
    max_cpus_per_node: int | None
    max_memory_bytes_per_node: int | None
    max_accelerators_per_node: int | None
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ClusterEntry:
    name: str
    title: str
    scheduler: str
    site: tuple[str, str]
    partitions: tuple[PartitionEntry, ...]
    nodes: tuple[NodeEntry, ...]


@dataclass(frozen=True)
class Manifest:
    """`sites` maps (region, site) to its time zone; `halls` are (region, site, hall)."""

    regions: tuple[str, ...]
    sites: Mapping[tuple[str, str], str]
    halls: tuple[tuple[str, str, str], ...]
    racks: Mapping[RackKey, RackEntry]
    node_types: Mapping[str, NodeTypeEntry]
    clusters: Mapping[str, ClusterEntry]


class ManifestError(InvalidInput):
    """What is wrong with a manifest, in the order of its lines."""

    def __init__(self, problems: list[Problem], file: str) -> None:
        self.problems = sorted(problems)
        self.file = file
        super().__init__({"manifest": [str(problem) for problem in self.problems]})

    def lines(self) -> list[str]:
        """`site.yaml:12: clusters[0].name: message`, as compilers write it."""
        return [
            f"{self.file}:{p.line}: {p.field}: {p.message}" if p.field else f"{self.file}:{p.line}: {p.message}"
            for p in self.problems
        ]


def parse_manifest(data: bytes, *, file: str = "manifest", known_types: Mapping[str, int] | None = None) -> Manifest:
    """Read a whole manifest. `known_types` are node types that need not be defined in it, with their height in U.

    Raises ManifestError with all that is wrong.
    """
    reader = Reader()
    try:
        manifest = _Parser(reader, dict(known_types or {})).manifest(compose(data))
    except Unreadable as error:
        raise ManifestError([error.problem], file) from None
    if reader.problems:
        raise ManifestError(reader.problems, file)
    return manifest


class _Parser:
    """One pass over the tree; what was read so far is what later entries may refer to."""

    def __init__(self, reader: Reader, heights_u: dict[str, int]) -> None:
        self.read = reader
        self.heights_u = heights_u
        self.sites: dict[tuple[str, str], str] = {}
        self.halls: dict[tuple[str, str, str], int] = {}
        self.racks: dict[RackKey, RackEntry] = {}
        self.types: dict[str, NodeTypeEntry] = {}
        self.clusters: dict[str, ClusterEntry] = {}
        self.node_count = 0
        # Units of each rack that are taken, by which node, on which line.
        self.taken: dict[RackKey, dict[int, tuple[str, int]]] = {}

    def manifest(self, root: yaml.Node) -> Manifest:
        top = {"version": True, "regions": True, "node_types": False, "clusters": False}
        values = self.read.mapping(root, "", top) or {}
        if (
            "version" in values
            and self.read.number(values["version"], "version", low=1, high=1) is None
            and not self.read.problems
        ):
            self.read.fail(values["version"], "version", "Write version: 1.")
        regions: dict[str, int] = {}
        for where, node in self.read.sequence(values.get("regions"), "regions"):
            self._region(node, where, regions)
        for where, node in self.read.sequence(values.get("node_types"), "node_types"):
            self._node_type(node, where)
        for where, node in self.read.sequence(values.get("clusters"), "clusters"):
            self._cluster(node, where)
        return Manifest(tuple(regions), self.sites, tuple(self.halls), self.racks, self.types, self.clusters)

    def _region(self, node: yaml.Node, where: str, regions: dict[str, int]) -> None:
        values = self.read.mapping(node, where, {"name": True, "sites": False})
        if values is None:
            return
        name = self._name(values, where)
        if name and self._is_new(node, where, name, regions, "region"):
            for inner, site in self.read.sequence(values.get("sites"), f"{where}.sites"):
                self._site(site, inner, name)

    def _site(self, node: yaml.Node, where: str, region: str) -> None:
        values = self.read.mapping(node, where, {"name": True, "time_zone": False, "halls": False})
        if values is None:
            return
        name = self._name(values, where)
        zone = self.read.text(values.get("time_zone"), f"{where}.time_zone", max_length=64, default="UTC")
        if zone not in _zones():
            close = _closest(zone, _zones())
            self.read.fail(values["time_zone"], f"{where}.time_zone", f"There is no time zone {zone!r}{close}.")
        if not name:
            return
        if (region, name) in self.sites:
            self.read.fail(node, f"{where}.name", f"There is a site {name!r} in this region already.")
            return
        self.sites[region, name] = zone
        for inner, hall in self.read.sequence(values.get("halls"), f"{where}.halls"):
            self._hall(hall, inner, (region, name))

    def _hall(self, node: yaml.Node, where: str, site: tuple[str, str]) -> None:
        values = self.read.mapping(node, where, {"name": True, "racks": False})
        if values is None:
            return
        name = self._name(values, where)
        if name and self._is_new(node, where, (*site, name), self.halls, "hall"):
            for inner, rack in self.read.sequence(values.get("racks"), f"{where}.racks"):
                self._racks(rack, inner, (*site, name))

    def _racks(self, node: yaml.Node, where: str, hall: tuple[str, str, str]) -> None:
        keys = {"names": True, "row": False, "place": False, "height_u": False, "power_limit_w": False}
        values = self.read.mapping(node, where, keys)
        if values is None or "names" not in values:
            return
        names = self._names(values["names"], f"{where}.names")
        row = self.read.text(values.get("row"), f"{where}.row", max_length=20)
        place = self.read.number(values.get("place"), f"{where}.place", low=0, high=30_000)
        height_u = self.read.number(values.get("height_u"), f"{where}.height_u", low=1, high=MAX_U) or 42
        power = self.read.number(values.get("power_limit_w"), f"{where}.power_limit_w", low=1, high=_BIG)
        if len(self.racks) + len(names) > MAX_RACKS:
            self.read.fail(values["names"], f"{where}.names", f"These are more than {MAX_RACKS:,} racks in all.")
            return
        for number, name in enumerate(names):
            key = (*hall, name)
            if key in self.racks:
                also = self.racks[key].line
                self.read.fail(
                    values["names"], f"{where}.names", f"Rack {name} stands in this hall already, on line {also}."
                )
                continue
            at = None if place is None else place + number
            self.racks[key] = RackEntry(key, row, at, height_u, power, line_of(node))

    def _node_type(self, node: yaml.Node, where: str) -> None:
        keys = {"name": True, "vendor": False, "accelerator": False, "accelerators_per_node": False}
        keys |= {"cpu_model": False, "cpus": False, "memory": False, "height_u": False, "power_max_w": False}
        values = self.read.mapping(node, where, keys)
        if values is None:
            return
        name = self._name(values, where)

        def number(key: str, low: int, high: int) -> int | None:
            return self.read.number(values.get(key), f"{where}.{key}", low=low, high=high)

        def text(key: str, max_length: int) -> str:
            return self.read.text(values.get(key), f"{where}.{key}", max_length=max_length)

        entry = NodeTypeEntry(
            name=name,
            vendor=text("vendor", 60),
            accelerator_model=text("accelerator", 80) or None,
            accelerators_per_node=number("accelerators_per_node", 0, 1024) or 0,
            cpu_model=text("cpu_model", 100),
            cpus=number("cpus", 1, 100_000),
            memory_bytes=self._memory(values.get("memory"), f"{where}.memory"),
            height_u=number("height_u", 1, MAX_U) or 1,
            power_max_w=number("power_max_w", 1, _BIG),
            line=line_of(node),
        )
        if name in self.types:
            also = self.types[name].line
            self.read.fail(node, f"{where}.name", f"There is a node type {name!r} already, on line {also}.")
        elif name:
            self.types[name] = entry
            self.heights_u[name] = entry.height_u

    def _cluster(self, node: yaml.Node, where: str) -> None:
        keys = {"name": True, "title": False, "scheduler": True, "site": True, "partitions": False, "nodes": False}
        values = self.read.mapping(node, where, keys)
        if values is None:
            return
        name = self._name(values, where, max_length=60)
        if name and not all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
            self.read.fail(values["name"], f"{where}.name", "Use letters, digits, - and _ only.")
        site = self._site_ref(values.get("site"), f"{where}.site")
        nodes: dict[str, NodeEntry] = {}
        for inner, entry in self.read.sequence(values.get("nodes"), f"{where}.nodes"):
            self._nodes(entry, inner, site, nodes)
        partitions: dict[str, PartitionEntry] = {}
        for inner, entry in self.read.sequence(values.get("partitions"), f"{where}.partitions"):
            self._partition(entry, inner, nodes, partitions)
        if name in self.clusters:
            self.read.fail(node, f"{where}.name", f"There is a cluster {name!r} already.")
        elif name and site:
            title = self.read.text(values.get("title"), f"{where}.title", max_length=120)
            scheduler = self.read.text(values.get("scheduler"), f"{where}.scheduler", max_length=20)
            self.clusters[name] = ClusterEntry(
                name, title, scheduler, site, tuple(partitions.values()), tuple(nodes.values())
            )

    def _partition(
        self, node: yaml.Node, where: str, nodes: dict[str, NodeEntry], partitions: dict[str, PartitionEntry]
    ) -> None:
        keys = {"name": True, "default": False, "nodes": False, "max_time": False, "max_nodes": False}
        keys |= {"max_cpus_per_node": False, "max_memory_per_node": False, "max_accelerators_per_node": False}
        values = self.read.mapping(node, where, keys)
        if values is None:
            return
        name = self._name(values, where)
        members = self._names(values["nodes"], f"{where}.nodes") if "nodes" in values else ()
        missing = [one for one in members if one not in nodes]
        if missing:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            self.read.fail(
                values["nodes"], f"{where}.nodes", f"There is no node {missing[0]}{more} among this cluster's nodes."
            )

        def number(key: str, high: int = _BIG) -> int | None:
            return self.read.number(values.get(key), f"{where}.{key}", low=1, high=high)

        entry = PartitionEntry(
            name=name,
            is_default=self.read.boolean(values.get("default"), f"{where}.default", default=False),
            max_time_s=self._duration(values.get("max_time"), f"{where}.max_time"),
            max_nodes_per_job=number("max_nodes"),
            max_cpus_per_node=number("max_cpus_per_node"),
            max_memory_bytes_per_node=self._memory(values.get("max_memory_per_node"), f"{where}.max_memory_per_node"),
            max_accelerators_per_node=number("max_accelerators_per_node", 1024),
            nodes=tuple(members),
        )
        if name in partitions:
            self.read.fail(node, f"{where}.name", f"There is a partition {name!r} in this cluster already.")
        elif entry.is_default and any(other.is_default for other in partitions.values()):
            self.read.fail(values["default"], f"{where}.default", "Another partition of this cluster is the default.")
        elif name:
            partitions[name] = entry

    def _nodes(self, node: yaml.Node, where: str, site: tuple[str, str] | None, nodes: dict[str, NodeEntry]) -> None:
        keys = {"names": True, "type": False, "hall": False, "racks": False, "positions_u": False, "height_u": False}
        keys |= {"face": False, "serial": False, "comment": False}
        values = self.read.mapping(node, where, keys)
        if values is None or "names" not in values:
            return
        names = self._names(values["names"], f"{where}.names")
        kind = self._type_ref(values.get("type"), f"{where}.type")
        height_u = self.read.number(values.get("height_u"), f"{where}.height_u", low=1, high=MAX_U)
        height_u = height_u or self.heights_u.get(kind or "", 1)
        places = self._places(values, where, site, node)
        face = self.read.text(values.get("face"), f"{where}.face", max_length=10, default="front")
        if face not in {"front", "rear"}:
            self.read.fail(values["face"], f"{where}.face", f"{face!r} is no face of a rack; write front or rear.")
        serial = self.read.text(values.get("serial"), f"{where}.serial", max_length=100)
        if serial and len(names) > 1:
            self.read.fail(values["serial"], f"{where}.serial", "A serial number belongs to one node, not to a range.")
        comment = self.read.text(values.get("comment"), f"{where}.comment", max_length=500)
        if places and len(places) < len(names):
            self.read.fail(
                values["names"],
                f"{where}.names",
                f"These are {len(names):,} nodes, and the racks and positions hold {len(places):,}.",
            )
        self.node_count += len(names)
        if self.node_count > MAX_NAMES:
            self.read.fail(values["names"], f"{where}.names", f"These are more than {MAX_NAMES:,} nodes in all.")
            return
        for number, name in enumerate(names):
            if name in nodes:
                also = nodes[name].line
                self.read.fail(values["names"], f"{where}.names", f"Node {name} is listed already, on line {also}.")
                continue
            rack, position_u = places[number] if number < len(places) else (None, None)
            entry = NodeEntry(name, kind, rack, position_u, height_u, face, serial, comment, line_of(node))
            nodes[name] = entry
            self._stand(node, where, entry)

    def _stand(self, node: yaml.Node, where: str, entry: NodeEntry) -> None:
        """Take the node's units of its rack; two nodes cannot share one."""
        if entry.rack is None or entry.position_u is None:
            return
        top_u, height_u = entry.position_u + entry.height_u - 1, self.racks[entry.rack].height_u
        rack = entry.rack[-1]
        if top_u > height_u:
            self.read.fail(
                node,
                f"{where}.positions_u",
                f"{entry.name} would fill U{entry.position_u}-{top_u}; rack {rack} has {height_u}.",
            )
            return
        taken = self.taken.setdefault(entry.rack, {})
        for unit in range(entry.position_u, top_u + 1):
            if unit in taken:
                other, line = taken[unit]
                also = "" if line == entry.line else f" (line {line})"
                self.read.fail(
                    node, f"{where}.positions_u", f"{entry.name} and {other}{also} both fill U{unit} of rack {rack}."
                )
                return
        taken.update(dict.fromkeys(range(entry.position_u, top_u + 1), (entry.name, entry.line)))

    def _places(
        self, values: dict[str, yaml.Node], where: str, site: tuple[str, str] | None, node: yaml.Node
    ) -> list[tuple[RackKey | None, int | None]]:
        """Where the entry's nodes stand, in their order: each rack is filled from its first position to its last."""
        if "racks" not in values:
            for key in ("hall", "positions_u"):
                if key in values:
                    self.read.fail(values[key], f"{where}.{key}", "This needs racks as well.")
            return []
        names = self._names(values["racks"], f"{where}.racks")
        if "hall" not in values:
            self.read.fail(node, f"{where}.hall", "This key is missing: in which hall do the racks stand?")
            return []
        hall = self.read.text(values["hall"], f"{where}.hall", max_length=100)
        if site is None:
            return []
        if (*site, hall) not in self.halls:
            self.read.fail(values["hall"], f"{where}.hall", f"There is no hall {hall!r} at site {site[1]}.")
            return []
        missing = [name for name in names if (*site, hall, name) not in self.racks]
        if missing:
            self.read.fail(values["racks"], f"{where}.racks", f"There is no rack {missing[0]!r} in {hall}.")
            return []
        positions: list[int | None] = []
        for inner, item in self.read.sequence(values.get("positions_u"), f"{where}.positions_u"):
            position_u = self.read.number(item, inner, low=1, high=MAX_U)
            if position_u is not None:
                positions.append(position_u)
        if not positions:  # somewhere in the rack: as many as there are
            return [((*site, hall, name), None) for name in names for _ in range(MAX_U)]
        return [((*site, hall, name), position_u) for name in names for position_u in positions]

    def _type_ref(self, node: yaml.Node | None, where: str) -> str | None:
        name = self.read.text(node, where, max_length=100)
        if name and node is not None and name not in self.heights_u:
            close = _closest(name, self.heights_u)
            self.read.fail(node, where, f"There is no node type {name!r}{close}.")
            return None
        return name or None

    def _site_ref(self, node: yaml.Node | None, where: str) -> tuple[str, str] | None:
        name = self.read.text(node, where, max_length=200)
        if node is None or not name:
            return None
        found = [key for key in self.sites if name in {key[1], "/".join(key)}]
        if len(found) == 1:
            return found[0]
        if found:
            said = f"There are {len(found)} sites {name!r}; write region/site."
        else:
            said = f"There is no site {name!r}{_closest(name, {key[1] for key in self.sites})}."
        self.read.fail(node, where, said)
        return None

    def _name(self, values: dict[str, yaml.Node], where: str, max_length: int = 100) -> str:
        if "name" not in values:
            return ""
        name = self.read.text(values["name"], f"{where}.name", max_length=max_length)
        if not name and not any(problem.field == f"{where}.name" for problem in self.read.problems):
            self.read.fail(values["name"], f"{where}.name", "A name cannot be empty.")
        return name

    def _is_new(self, node: yaml.Node, where: str, key: object, known: dict, noun: str) -> bool:  # type: ignore[type-arg]
        if key in known:
            name = key[-1] if isinstance(key, tuple) else key
            self.read.fail(node, f"{where}.name", f"There is a {noun} {name!r} already, on line {known[key]}.")
            return False
        known[key] = line_of(node)
        return True

    def _names(self, node: yaml.Node, where: str) -> tuple[str, ...]:
        text = self.read.text(node, where, max_length=4000)
        if not text:
            if not any(problem.field == where for problem in self.read.problems):
                self.read.fail(node, where, "A name cannot be empty.")
            return ()
        if not is_range(text) and " " in text:
            return (text,)
        try:
            return node_names(text, field=where)
        except InvalidInput as error:
            self.read.fail(node, where, error.fields[where][0])
            return ()

    def _memory(self, node: yaml.Node | None, where: str) -> int | None:
        text = self.read.text(node, where, max_length=40)
        if not text or node is None:
            return None
        try:
            return parse_memory(text, where)
        except InvalidInput as error:
            self.read.fail(node, where, error.fields[where][0])
            return None

    def _duration(self, node: yaml.Node | None, where: str) -> int | None:
        text = self.read.text(node, where, max_length=40)
        if not text or node is None:
            return None
        try:
            return parse_duration(text, where)
        except InvalidInput as error:
            self.read.fail(node, where, error.fields[where][0])
            return None


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _closest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}" if close else ""

"""The site manifest: one YAML file that says what stands where. Pure: text in, dataclasses or exact complaints out.

region: eu-north
site: {name: Aurland, time_zone: Europe/Oslo}
clusters:
  - {name: alpha, title: Alpha, scheduler: slurm}
halls:
  - name: H1
    racks:
      - names: A[01-04]              # ranges as Slurm writes them
        row: A
        height_u: 48
        nodes:
          - {names: "gpu[001-016]", type: DGX H100, cluster: alpha, per_rack: 4, first_u: 1, height_u: 8}
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zoneinfo import available_timezones

import yaml
from ClusterShell.NodeSet import NodeSet, NodeSetException

from apps.core.errors import InvalidInput

MAX_BYTES = 5_000_000
MAX_NODES = 100_000
MAX_RACKS = 10_000
_FACES = ("front", "rear")


class Complaint(NamedTuple):
    """What is wrong, where: `field` is a dotted path like `halls.0.racks.2.nodes.0.first_u`."""

    file: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}: {self.field}: {self.message}"
            if self.field
            else f"{self.file}:{self.line}: {self.message}"
        )


class ManifestError(InvalidInput):
    """All that is wrong with a manifest, in the order of its lines."""

    def __init__(self, complaints: list[Complaint]) -> None:
        self.complaints = sorted(complaints, key=lambda c: c.line)
        super().__init__({"manifest": [str(complaint) for complaint in self.complaints]})


@dataclass(frozen=True)
class ClusterEntry:
    name: str
    title: str = ""
    scheduler: str = "none"


@dataclass(frozen=True)
class NodeEntry:
    name: str
    type: str | None
    cluster: str | None
    position_u: int | None
    height_u: int
    face: str = "front"
    serial: str = ""
    comment: str = ""


@dataclass(frozen=True)
class RackEntry:
    name: str
    row: str = ""
    place: int | None = None
    height_u: int = 42
    power_limit_w: int | None = None
    nodes: tuple[NodeEntry, ...] = ()


@dataclass(frozen=True)
class HallEntry:
    name: str
    racks: tuple[RackEntry, ...] = ()


@dataclass(frozen=True)
class SiteManifest:
    region: str
    site: str
    time_zone: str = "UTC"
    clusters: tuple[ClusterEntry, ...] = ()
    halls: tuple[HallEntry, ...] = ()


def node_names(text: str, field: str = "names", limit: int = MAX_NODES) -> list[str]:
    """`gpu[001-128,200]` -> names, as Slurm writes them. Raises InvalidInput on `field`."""
    if not text.strip() or any(c in text for c in "@!&^ \t\n") or not text.isprintable():
        raise InvalidInput({field: f"{text[:80]!r} is no list of names; write it like gpu[001-128,200]."})
    try:
        names = NodeSet(text, resolver=None)
        if len(names) > limit:
            raise InvalidInput({field: f"{text[:80]!r} names {len(names):,}; {limit:,} is the limit."})
        return [str(name) for name in names]
    except NodeSetException as error:
        raise InvalidInput({field: f"{text[:80]!r} is no list of names: {error}"}) from None


def parse_manifest(text: str, file: str = "site.yaml", known_types: set[str] | None = None) -> SiteManifest:
    """Raises ManifestError with every complaint. `known_types`: names of node types, None to take any."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ManifestError([Complaint(file, 1, "", f"the file is larger than {MAX_BYTES // 1_000_000} MB")])
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken | yaml.AnchorToken):
                where = token.start_mark.line + 1
                raise ManifestError(
                    [Complaint(file, where, "", "anchors and aliases (& and *) are not understood here")]
                )
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ManifestError([Complaint(file, line, "", f"this is not YAML: {error.problem}")]) from None
    except yaml.YAMLError as error:
        raise ManifestError([Complaint(file, 1, "", f"this is not YAML: {error}")]) from None
    except RecursionError:
        raise ManifestError([Complaint(file, 1, "", "it is nested too deeply")]) from None
    reader = _Reader(file, known_types)
    manifest = reader.read(root)
    if reader.complaints:
        raise ManifestError(reader.complaints)
    assert manifest is not None
    return manifest


@dataclass
class _Reader:
    """Walks YAML nodes, which know their lines, and gathers complaints instead of stopping at the first."""

    file: str
    known_types: set[str] | None
    complaints: list[Complaint] = field(default_factory=list)
    node_count: int = 0
    seen_nodes: dict[tuple[str | None, str], int] = field(default_factory=dict)

    def read(self, root: yaml.Node | None) -> SiteManifest | None:
        if root is None:
            self.complain(None, "", "the file is empty")
            return None
        top = self.mapping(root, "", {"region", "site", "clusters", "halls"}, {"region", "site"})
        site = self.mapping(top.get("site"), "site", {"name", "time_zone"}, {"name"}) if "site" in top else {}
        time_zone = self.text(site.get("time_zone"), "site.time_zone", "UTC")
        if time_zone not in available_timezones():
            self.complain(site.get("time_zone"), "site.time_zone", f"{time_zone!r} is no time zone, like Europe/Oslo")
        clusters = [
            self.cluster(node, f"clusters.{n}") for n, node in enumerate(self.sequence(top.get("clusters"), "clusters"))
        ]
        self.unique([c.name for c in clusters], top.get("clusters"), "clusters", "cluster")
        names = {cluster.name for cluster in clusters}
        halls = tuple(
            self.hall(node, f"halls.{n}", names) for n, node in enumerate(self.sequence(top.get("halls"), "halls"))
        )
        self.unique([h.name for h in halls], top.get("halls"), "halls", "hall")
        return SiteManifest(
            region=self.text(top.get("region"), "region"),
            site=self.text(site.get("name"), "site.name"),
            time_zone=time_zone,
            clusters=tuple(clusters),
            halls=halls,
        )

    def cluster(self, node: yaml.Node, path: str) -> ClusterEntry:
        given = self.mapping(node, path, {"name", "title", "scheduler"}, {"name"})
        return ClusterEntry(
            name=self.text(given.get("name"), f"{path}.name"),
            title=self.text(given.get("title"), f"{path}.title", ""),
            scheduler=self.text(given.get("scheduler"), f"{path}.scheduler", "none"),
        )

    def hall(self, node: yaml.Node, path: str, clusters: set[str]) -> HallEntry:
        given = self.mapping(node, path, {"name", "racks"}, {"name"})
        racks: list[RackEntry] = []
        for n, rack in enumerate(self.sequence(given.get("racks"), f"{path}.racks")):
            racks += self.racks(rack, f"{path}.racks.{n}", clusters)
        if len(racks) > MAX_RACKS:
            self.complain(given.get("racks"), f"{path}.racks", f"{len(racks):,} racks; {MAX_RACKS:,} is the limit")
        self.unique([rack.name for rack in racks], given.get("racks"), f"{path}.racks", "rack")
        return HallEntry(self.text(given.get("name"), f"{path}.name"), tuple(racks))

    def racks(self, node: yaml.Node, path: str, clusters: set[str]) -> list[RackEntry]:
        given = self.mapping(node, path, {"name", "names", "row", "place", "height_u", "power_limit_w", "nodes"}, set())
        names = self.names(given, node, path, MAX_RACKS)
        height_u = self.number(given.get("height_u"), f"{path}.height_u", 42, 1, 100) or 42
        first_place = self.number(given.get("place"), f"{path}.place", None, 0, 10_000)
        filled: dict[str, list[NodeEntry]] = {name: [] for name in names}
        for n, group in enumerate(self.sequence(given.get("nodes"), f"{path}.nodes")):
            for rack_name, entry in self.nodes(group, f"{path}.nodes.{n}", names, height_u, clusters):
                filled[rack_name].append(entry)
        for name, entries in filled.items():
            self.no_overlap(entries, given.get("nodes"), f"{path}.nodes", name)
        return [
            RackEntry(
                name=name,
                row=self.text(given.get("row"), f"{path}.row", ""),
                place=None if first_place is None else first_place + n,
                height_u=height_u,
                power_limit_w=self.number(given.get("power_limit_w"), f"{path}.power_limit_w", None, 1, 10_000_000),
                nodes=tuple(filled[name]),
            )
            for n, name in enumerate(names)
        ]

    def nodes(
        self, node: yaml.Node, path: str, racks: list[str], rack_height_u: int, clusters: set[str]
    ) -> Iterator[tuple[str, NodeEntry]]:
        known = {"name", "names", "type", "cluster", "first_u", "height_u", "per_rack", "face", "serial", "comment"}
        given = self.mapping(node, path, known, set())
        names = self.names(given, node, path, MAX_NODES)
        self.node_count += len(names)
        if self.node_count > MAX_NODES:
            self.complain(node, path, f"more than {MAX_NODES:,} nodes in one manifest")
            return
        type_name = self.text(given.get("type"), f"{path}.type", "") or None
        if type_name and self.known_types is not None and type_name not in self.known_types:
            hint = self.hint(type_name, self.known_types)
            self.complain(
                given.get("type"), f"{path}.type", f"there is no node type {type_name!r} in the catalogue{hint}"
            )
        cluster = self.text(given.get("cluster"), f"{path}.cluster", "") or None
        if cluster and cluster not in clusters:
            hint = self.hint(cluster, clusters)
            self.complain(given.get("cluster"), f"{path}.cluster", f"cluster {cluster!r} is not listed above{hint}")
        face = self.text(given.get("face"), f"{path}.face", "front")
        if face not in _FACES:
            self.complain(given.get("face"), f"{path}.face", f"{face!r} is no face; use front or rear")
        height_u = self.number(given.get("height_u"), f"{path}.height_u", 1, 1, 100) or 1
        first_u = self.number(given.get("first_u"), f"{path}.first_u", None, 1, 100)
        even = -(-len(names) // len(racks)) if racks else 1
        per_rack = self.number(given.get("per_rack"), f"{path}.per_rack", even, 1, 100) or 1
        if racks and per_rack * len(racks) < len(names):
            text = (
                f"{len(names):,} nodes do not fit: {len(racks):,} racks x {per_rack} a rack = {per_rack * len(racks):,}"
            )
            self.complain(given.get("names") or node, f"{path}.names", text)
            return
        top = None if first_u is None else first_u - 1 + min(per_rack, len(names)) * height_u
        if top is not None and top > rack_height_u:
            text = f"the nodes reach up to U {top}, and the rack has {rack_height_u}"
            self.complain(given.get("first_u"), f"{path}.first_u", text)
            return
        for n, name in enumerate(names):
            line = self.line(given.get("names") or given.get("name") or node)
            earlier = self.seen_nodes.setdefault((cluster, name), line)
            if earlier != line:
                self.complain(node, f"{path}.names", f"node {name} is there already, on line {earlier}")
                return
            position = None if first_u is None else first_u + (n % per_rack) * height_u
            yield (
                racks[n // per_rack],
                NodeEntry(
                    name=name,
                    type=type_name,
                    cluster=cluster,
                    position_u=position,
                    height_u=height_u,
                    face=face,
                    serial=self.text(given.get("serial"), f"{path}.serial", ""),
                    comment=self.text(given.get("comment"), f"{path}.comment", ""),
                ),
            )

    # -- pieces

    def names(self, given: dict[str, yaml.Node], node: yaml.Node, path: str, limit: int) -> list[str]:
        if ("name" in given) == ("names" in given):
            self.complain(node, path, "give either name or names")
            return []
        if "name" in given:
            name = self.text(given["name"], f"{path}.name")
            return [name] if name else []
        text = self.text(given["names"], f"{path}.names")
        try:
            return node_names(text, limit=limit) if text else []
        except InvalidInput as error:
            self.complain(given["names"], f"{path}.names", error.fields["names"][0])
            return []

    def no_overlap(self, entries: list[NodeEntry], node: yaml.Node | None, path: str, rack: str) -> None:
        taken: dict[int, str] = {}
        for entry in entries:
            for u in range(entry.position_u, entry.position_u + entry.height_u) if entry.position_u else ():
                if u in taken:
                    self.complain(node, path, f"in rack {rack}, {taken[u]} and {entry.name} both stand in U {u}")
                    return
                taken[u] = entry.name

    def mapping(self, node: yaml.Node | None, path: str, known: set[str], required: set[str]) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            self.complain(node, path, "this must be a mapping: name: value")
            return {}
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            where = f"{path}.{name}" if path else name
            if name not in known:
                self.complain(key, where, f"there is no field {name!r} here{self.hint(name, known)}")
            elif name in found:
                self.complain(key, where, "this is there twice")
            found[name] = value
        for name in sorted(required - set(found)):
            self.complain(node, f"{path}.{name}" if path else name, "this is missing")
        return found

    def sequence(self, node: yaml.Node | None, path: str) -> list[yaml.Node]:
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.complain(node, path, "this must be a list: lines that start with a dash")
            return []
        return list(node.value)

    def text(self, node: yaml.Node | None, path: str, default: str | None = None) -> str:
        if node is None:
            return default or ""
        if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
            self.complain(node, path, "this must be a text")
            return default or ""
        if len(node.value) > 200 or not node.value.isprintable():
            self.complain(node, path, "this must be one line of up to 200 characters")
        return str(node.value).strip()

    def number(self, node: yaml.Node | None, path: str, default: int | None, least: int, most: int) -> int | None:
        if node is None:
            return default
        value: Any = node.value if isinstance(node, yaml.ScalarNode) else None
        if not isinstance(value, str) or not value.isdecimal() or not least <= int(value) <= most:
            self.complain(node, path, f"this must be a whole number from {least:,} to {most:,}")
            return default
        return int(value)

    def unique(self, names: list[str], node: yaml.Node | None, path: str, noun: str) -> None:
        seen: set[str] = set()
        for name in names:
            if name in seen:
                self.complain(node, path, f"{noun} {name!r} is there twice")
            seen.add(name)

    def complain(self, node: yaml.Node | None, path: str, message: str) -> None:
        self.complaints.append(Complaint(self.file, self.line(node), path, message))

    @staticmethod
    def line(node: yaml.Node | None) -> int:
        return node.start_mark.line + 1 if node is not None else 1

    @staticmethod
    def hint(name: str, known: set[str]) -> str:
        close = difflib.get_close_matches(name, sorted(known), n=1)
        return f"; did you mean {close[0]!r}?" if close else f"; there is: {', '.join(sorted(known)[:12])}"

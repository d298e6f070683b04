"""Reading a manifest: every mistake is told with its line and its field."""

from __future__ import annotations

import pytest

from apps.core.errors import InvalidInput
from apps.inventory.manifest import ManifestError, parse_manifest
from apps.inventory.noderange import node_names
from tests.inventory.conftest import MANIFEST


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text if isinstance(text, bytes) else text.encode(), file="site.yaml")
    return caught.value.lines()


def changed(old: str, new: str) -> str:
    assert MANIFEST.count(old) == 1, old
    return MANIFEST.replace(old, new)


def test_what_is_right_is_read():
    manifest = parse_manifest(MANIFEST.encode())
    assert manifest.sites == {("north", "Aurland"): "Europe/Oslo"}
    assert [(rack.key[-1], rack.place) for rack in manifest.racks.values()] == [("A01", 1), ("A02", 2)]
    alpha = manifest.clusters["alpha"]
    places = [(n.name, n.rack[-1], n.position_u, n.height_u) for n in alpha.nodes]
    assert places == [("n1", "A01", 1, 4), ("n2", "A01", 5, 4), ("n3", "A02", 1, 4), ("n4", "A02", 5, 4)]
    assert alpha.partitions[0].max_time_s == 86400 and alpha.partitions[0].nodes == ("n1", "n2", "n3", "n4")
    assert manifest.node_types["Box"].memory_bytes == 512 * 2**30


# The line is where the eye must go: that of the key or value that is wrong.
MISTAKES = [
    ("version: 1", "version: 2", 1, "version", "2 is out of range; it must be 1 to 1."),
    ("version: 1\n", "", 1, "version", "This key is missing."),
    ("regions:", "regons:", 2, "regons", "There is no such key here; did you mean regions."),
    ("name: north", "name:", 3, "regions[0].name", "A name cannot be empty."),
    (
        "Europe/Oslo",
        "Europe/Olso",
        6,
        "regions[0].sites[0].time_zone",
        "There is no time zone 'Europe/Olso'; did you mean 'Europe/Oslo'.",
    ),
    (
        "place: 1",
        "place: first",
        10,
        "regions[0].sites[0].halls[0].racks[0].place",
        "'first' is not a whole number.",
    ),
    (
        "height_u: 42",
        "height_u: 101",
        10,
        "regions[0].sites[0].halls[0].racks[0].height_u",
        "101 is out of range; it must be 1 to 100.",
    ),
    (
        'A[01-02]", row',
        'A[02-01]", row',
        10,
        "regions[0].sites[0].halls[0].racks[0].names",
        "'A[02-01]' cannot be read",
    ),
    ("memory: 512G", "memory: lots", 12, "node_types[0].memory", "'lots' is not an amount of memory"),
    ("    scheduler: slurm\n", "", 14, "clusters[0].scheduler", "This key is missing."),
    (
        "    scheduler: slurm\n",
        "    scheduler: slurm\n    scheduler: local\n",
        16,
        "clusters[0].scheduler",
        "This key stands here twice; it is also on line 15.",
    ),
    ("site: Aurland", "site: Aurlund", 16, "clusters[0].site", "There is no site 'Aurlund'; did you mean 'Aurland'."),
    ("type: Box", "type: Bok", 19, "clusters[0].nodes[0].type", "There is no node type 'Bok'; did you mean 'Box'."),
    ("hall: H1", "hall: H2", 20, "clusters[0].nodes[0].hall", "There is no hall 'H2' at site Aurland."),
    ("racks: A[01-02]", "racks: A[02-03]", 21, "clusters[0].nodes[0].racks", "There is no rack 'A03' in H1."),
    (
        "[1, 5]",
        "[1, 3]",
        18,
        "clusters[0].nodes[0].positions_u",
        "n2 and n1 both fill U3 of rack A01.",
    ),
    ("[1, 5]", "[1, 40]", 18, "clusters[0].nodes[0].positions_u", "n2 would fill U40-43; rack A01 has 42."),
    (
        "names: n[1-4]",
        "names: n[1-5]",
        18,
        "clusters[0].nodes[0].names",
        "These are 5 nodes, and the racks and positions hold 4.",
    ),
    ("[1, 5]", "{one: 1}", 22, "clusters[0].nodes[0].positions_u", "Here must be a list, not a mapping"),
    (
        'nodes: "n[1-4]"',
        'nodes: "n[1-6]"',
        24,
        "clusters[0].partitions[0].nodes",
        "There is no node n5 and 1 more among this cluster's nodes.",
    ),
    ("default: true", "default: maybe", 24, "clusters[0].partitions[0].default", "'maybe' is neither true nor false."),
    ("1-00:00:00", "soon", 24, "clusters[0].partitions[0].max_time", "'soon' is not a duration"),
]


@pytest.mark.parametrize(("old", "new", "line", "field", "message"), MISTAKES)
def test_a_mistake_is_told_with_its_line_and_field(old, new, line, field, message):
    found = problems(changed(old, new))
    assert any(text.startswith(f"site.yaml:{line}: {field}: {message}") for text in found), found


def test_all_mistakes_are_told_at_once_in_the_order_of_their_lines():
    text = changed("Europe/Oslo", "Mars").replace("type: Box", "type: Crate").replace("512G", "lots")
    lines = [int(line.split(":")[1]) for line in problems(text)]
    assert lines == sorted(lines) and set(lines) == {6, 12, 19}


def test_nodes_of_two_clusters_cannot_share_a_unit():
    other = """\
  - name: beta
    scheduler: slurm
    site: Aurland
    nodes:
      - {names: m1, type: Box, hall: H1, racks: A02, positions_u: [8]}
"""
    assert problems(MANIFEST + other) == [
        "site.yaml:29: clusters[1].nodes[0].positions_u: m1 and n4 (line 18) both fill U8 of rack A02."
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (b"", 1, "The file is empty."),
        (b"# nothing\n", 1, "The file is empty."),
        (b"version: 1\nregions: [", 3, "This is not valid YAML"),
        (b"version: 1\n\tregions: []", 2, "This is not valid YAML"),
        (b"version: 1\nregions: \xff\xfe", 2, "This is not UTF-8 text"),
        (b"version: 1\nregions: a\x00b", 2, "This is not valid YAML"),
        (b"- 1\n", 1, "Here must be a mapping"),
        (b"version: 1\nregions: " + b"[" * 40 + b"]" * 40, 2, "More than 30 levels deep."),
        (b"#" * (2 * 2**20 + 1), 1, "The file has 2,097,153 bytes"),
        (b"a: 1\n---\nb: 2\n", 2, "This is not valid YAML"),
    ],
)
def test_what_is_no_manifest_at_all(text, line, message):
    found = problems(text)
    assert found[0].startswith(f"site.yaml:{line}: ") and message in found[0], found


def test_aliases_cannot_make_a_small_file_a_huge_one():
    levels = ["a: &a0 [{name: x}, {name: x}]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert problems("\n".join(levels))  # answered at once, whatever is wrong with it
    racks = "{names: r}, " * 50
    sites = [f"      - {{name: s{n}, halls: [{{name: h, racks: [{racks}]}}]}}" for n in range(27)]
    regions = [f"  - {{name: r{n}, sites: *s}}" for n in range(400)]
    halls = "\n".join(["version: 1", "regions:", "  - name: r", "    sites: &s", *sites, *regions])
    assert any("stands for too much" in text or "already" in text for text in problems(halls))


def test_a_list_that_contains_itself_ends():
    assert problems("version: 1\nregions: &r [*r]")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ("gpu1",)),
        ("gpu[001-003,200]", ("gpu001", "gpu002", "gpu003", "gpu200")),
        ("b,a", ("a", "b")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
    ],
)
def test_names_as_slurm_writes_them(text, names):
    assert node_names(text) == names


@pytest.mark.parametrize(
    "text", ["", "gpu[", "gpu[3-1]", "gpu[1-999999999]", "gpu[1-300]n[1-300]", "@all", "a b", "gpu[1-2", "a\nb", "ü1"]
)
def test_what_is_no_list_of_names_is_refused_before_it_is_expanded(text):
    with pytest.raises(InvalidInput) as caught:
        node_names(text)
    assert list(caught.value.fields) == ["names"]

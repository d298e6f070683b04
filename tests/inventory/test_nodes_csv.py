"""Nodes from a table, as spreadsheets really save them."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from apps.core.errors import InvalidInput, NotAllowed
from apps.core.models import AuditEntry
from apps.inventory.importing import import_nodes
from apps.inventory.models import Cluster, Hall, Node, Rack, Region, Site
from apps.inventory.nodes_csv import parse_nodes_csv

BOM = b"\xef\xbb\xbf"
TABLE = "name,cluster,rack,position,face,u_height,serial,model,gpu_model,gpu_count,comment\r\n"
ROWS = "gpu1,alpha,R01,1,front,8,S1,XE9680,H100,8,first\r\ngpu2,alpha,R01,9,front,8,S2,XE9680,H100,8,\r\n"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "cases" / "inventory" / "bom-utf8.csv"


@pytest.fixture
def hall(db) -> Hall:
    Cluster.objects.create(name="alpha", scheduler="slurm")
    site = Site.objects.create(name="s", region=Region.objects.create(name="r"))
    return Hall.objects.create(name="h", site=site)


def mistakes(data: bytes | str) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        parse_nodes_csv(data.encode() if isinstance(data, str) else data)
    assert list(caught.value.fields) == ["file"]
    return caught.value.fields["file"]


@pytest.mark.parametrize(
    "data",
    [
        (TABLE + ROWS).encode(),
        BOM + (TABLE + ROWS).encode(),
        (TABLE + ROWS).replace(",", ";").encode(),
        (TABLE + ROWS).replace(",", "\t").encode(),
        (TABLE + ROWS).encode("utf-16"),
        ("\r\n" + TABLE + "\r\n" + ROWS + ",,,,,,,,,,\r\n\r\n").encode(),
        (TABLE.upper() + ROWS.replace("\r\n", "\n")).encode(),
    ],
    ids=["plain", "byte order mark", "semicolons", "tabs", "UTF-16", "empty rows", "capitals"],
)
def test_two_nodes_with_names(data):
    rows = parse_nodes_csv(data)
    assert [(r.name, r.rack, r.position_u, r.height_u, r.serial) for r in rows] == [
        ("gpu1", "R01", 1, 8, "S1"),
        ("gpu2", "R01", 9, 8, "S2"),
    ]


@pytest.mark.skipif(not SHARED.exists(), reason="reads ../shared, which is not beside this checkout")
def test_the_shared_case_has_two_nodes_with_names(hall, cast):
    done = import_nodes(SHARED.read_bytes(), hall=hall, by=cast.rex)
    assert done.added == ("gpu101", "gpu102")
    node = Node.objects.get(name="gpu101")
    assert (node.cluster.name, node.rack.name, node.position_u, node.comment) == (
        "alpha",
        "R01",
        1,
        "first column is name",
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "The file is empty; its first line must name the columns."),
        ("name,name\nx,y\n", "line 1: column 2: 'name' stands twice among the columns."),
        ("position,position_u,name\n1,2,x\n", "line 1: column 2: 'position_u' stands twice among the columns."),
        ("rack\nR1\n", "line 1: The column 'name' is missing."),
        ("name,colour\nx,red\n", "line 1: column 2: There is no column 'colour'; known: name,"),
        ("name\n", "There is no row below the names of the columns."),
        ("name,rack\nx,R1,9\n", "line 2: There are 3 values and 2 columns."),
        ("name,position\nx,first\n", "line 2: position_u: 'first' is no whole number from 1 to 100."),
        ("name,position\nx,0\n", "line 2: position_u: '0' is no whole number from 1 to 100."),
        ("name,face\nx,side\n", "line 2: face: write front or rear, not 'side'."),
        ("name,rack\n,R1\n", "line 2: name: A node must have a name."),
        (b"name\n\xff\xff\n", "This is neither UTF-8 nor UTF-16 text; save it as CSV UTF-8."),
        (b"name\nx\x00y\n", "There are NUL characters in it: this is no text file."),
        ('name\n"x\n', "line 2: This is no CSV: unexpected end of data."),
    ],
)
def test_a_mistake_is_told_with_its_line(data, said):
    assert mistakes(data)[0].startswith(said)


def test_quoted_cells_may_hold_lines_and_delimiters():
    rows = parse_nodes_csv(b'name,comment\n"x","a, b\nc"\ny,\n')
    assert [(r.name, r.comment, r.line) for r in rows] == [("x", "a, b\nc", 3), ("y", "", 4)]


def test_rows_are_added_then_changed_then_left(hall, cast):
    assert import_nodes((TABLE + ROWS).encode(), hall=hall, by=cast.rex).added == ("gpu1", "gpu2")
    assert Node.objects.get(name="gpu2").accelerator_count == 8
    again = import_nodes((TABLE + ROWS).encode(), hall=hall, by=cast.rex)
    assert (again.added, again.changed, again.unchanged) == ((), (), 2)
    moved = import_nodes((TABLE + ROWS).replace("R01,9", "R01,20").encode(), hall=hall, by=cast.rex)
    assert moved.changed == ("gpu2",)
    entry = AuditEntry.objects.get(verb="node.edit")
    assert (entry.before, entry.after, entry.actor) == ({"position_u": 9}, {"position_u": 20}, cast.rex)


def test_all_rows_or_none(hall, cast):
    rows = ROWS.replace("R01,9", "R01,4") + "gpu3,beta,R01,30,front,1,,,,,\r\n"
    with pytest.raises(InvalidInput) as caught:
        import_nodes((TABLE + rows).encode(), hall=hall, by=cast.rex)
    assert caught.value.fields["file"] == [
        "line 3: position_u: gpu1 stands in U1-8 of this rack.",
        "line 4: cluster: There is no cluster 'beta'.",
    ]
    assert not Node.objects.exists() and not Rack.objects.exists() and not AuditEntry.objects.exists()


def test_only_operators_import(hall, cast):
    with pytest.raises(NotAllowed):
        import_nodes((TABLE + ROWS).encode(), hall=hall, by=cast.olga)


def test_the_command_says_what_it_did(hall, tmp_path, capsys):
    file = tmp_path / "nodes.csv"
    file.write_bytes(BOM + (TABLE + ROWS).encode())
    call_command("import_nodes", file, hall="s/h", dry_run=True)
    assert not Node.objects.exists()
    call_command("import_nodes", file, hall="s/h")
    assert capsys.readouterr().out.splitlines() == [
        "would be: 2 nodes added, 0 changed, 0 as they were",
        "2 nodes added, 0 changed, 0 as they were",
    ]
    with pytest.raises(CommandError, match="there is no hall"):
        call_command("import_nodes", file, hall="s/other")

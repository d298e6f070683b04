"""Operators' edits by hand: checked, recorded, and never two nodes in one unit."""

from __future__ import annotations

import threading

import pytest
from django.db import IntegrityError, connection, transaction

from apps.core.errors import Conflict, InvalidInput, NotAllowed
from apps.core.models import AuditEntry
from apps.inventory.editing import add_thing, edit_thing, retire_thing
from apps.inventory.models import Hall, Node, NodeStateChange, NodeType, Rack, Region, Site

pytestmark = pytest.mark.django_db


@pytest.fixture
def rack(cast) -> Rack:
    region = add_thing(Region, {"name": "north"}, by=cast.rex)
    site = add_thing(Site, {"region": region, "name": "Aurland", "time_zone": "Europe/Oslo"}, by=cast.rex)
    hall = add_thing(Hall, {"site": site, "name": "H1"}, by=cast.rex)
    return add_thing(Rack, {"hall": hall, "name": "A01", "height_u": 42}, by=cast.rex)


def add_node(
    cast, rack: Rack | None, name: str = "n1", position_u: int | None = 1, height_u: int = 4, **values
) -> Node:
    given = {"cluster": cast.cluster, "name": name, "rack": rack, "position_u": position_u, "height_u": height_u}
    return add_thing(Node, given | values, by=cast.rex)


def refused(action) -> dict[str, list[str]]:
    with pytest.raises(InvalidInput) as caught:
        action()
    return caught.value.fields


def test_places_are_added_one_in_the_other_and_recorded(rack, cast):
    assert str(rack.hall) == "Aurland / H1"
    verbs = list(AuditEntry.objects.order_by("id").values_list("verb", flat=True))
    assert verbs == ["region.add", "site.add", "hall.add", "rack.add"]
    assert AuditEntry.objects.get(verb="rack.add").after["hall"] == "Aurland / H1"


@pytest.mark.parametrize(
    ("position_u", "height_u", "said"),
    [
        (1, 1, {"position_u": ["n1 stands in U1-4 of this rack."]}),
        (4, 2, {"position_u": ["n1 stands in U1-4 of this rack."]}),
        (42, 2, {"position_u": ["It would fill U42-43; the rack has U1-42."]}),
        (0, 1, {"position_u": ["It would fill U0-0; the rack has U1-42."]}),
    ],
)
def test_two_nodes_cannot_share_a_unit(rack, cast, position_u, height_u, said):
    add_node(cast, rack)
    assert refused(lambda: add_node(cast, rack, "n2", position_u, height_u)) == said
    assert Node.objects.count() == 1


def test_the_next_free_unit_and_another_rack_are_free(rack, cast):
    add_node(cast, rack)
    add_node(cast, rack, "n2", 5)
    other = add_thing(Rack, {"hall": rack.hall, "name": "A02"}, by=cast.rex)
    add_node(cast, other, "n3", 1)
    add_node(cast, rack, "n4", None)
    assert Node.objects.count() == 4


def test_the_database_itself_refuses_an_overlap(rack, cast):
    add_node(cast, rack)
    with pytest.raises(IntegrityError, match="node_place_is_free"), transaction.atomic():
        Node.objects.create(cluster=cast.cluster, name="n2", rack=rack, position_u=4, height_u=1)


@pytest.mark.django_db(transaction=True)
def test_two_people_at_once_cannot_put_two_nodes_in_one_unit(rack, cast):
    outcomes: list[str] = []
    start = threading.Barrier(2)

    def put(name: str) -> None:
        start.wait()
        try:
            add_node(cast, rack, name)
            outcomes.append("added")
        except InvalidInput as error:
            outcomes.append(next(iter(error.fields)))
        finally:
            connection.close()

    threads = [threading.Thread(target=put, args=(name,)) for name in ("n1", "n2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["added", "position_u"] and Node.objects.count() == 1


def test_a_position_needs_a_rack(cast):
    assert refused(lambda: add_node(cast, None)) == {"rack": ["Say in which rack the position is."]}


def test_a_node_takes_the_hardware_of_its_type(rack, cast):
    kind = add_thing(NodeType, {"name": "Box", "cpus": 64, "accelerators_per_node": 8, "height_u": 4}, by=cast.rex)
    node = add_thing(Node, {"cluster": cast.cluster, "name": "n1", "node_type": kind, "memory_bytes": 7}, by=cast.rex)
    assert (node.cpus, node.accelerator_count, node.height_u, node.memory_bytes) == (64, 8, 4, 7)
    assert list(NodeStateChange.objects.values_list("state", "source")) == [("planned", "rex")]


def test_an_edit_records_what_differs_and_nothing_else(rack, cast):
    node = add_node(cast, rack)
    edit_thing(node, {"position_u": 10, "height_u": 4, "serial": "S1"}, by=cast.rex)
    entry = AuditEntry.objects.get(verb="node.edit")
    assert (entry.before, entry.after) == ({"position_u": 1, "serial": ""}, {"position_u": 10, "serial": "S1"})
    edit_thing(node, {"position_u": 10}, by=cast.rex)
    assert AuditEntry.objects.filter(verb="node.edit").count() == 1


def test_what_cannot_be_set_by_hand_is_refused(rack, cast):
    node = add_node(cast, rack)
    assert refused(lambda: edit_thing(node, {"state": "idle"}, by=cast.rex)) == {
        "state": ["This cannot be set by hand."]
    }


@pytest.mark.parametrize(
    ("model", "values", "field"),
    [
        (Region, {"name": "north"}, "name"),
        (Region, {"name": ""}, "name"),
        (Region, {"name": "x" * 101}, "name"),
        (Rack, {"height_u": 0}, "height_u"),
        (Rack, {"height_u": 3}, "height_u"),
        (Site, {"time_zone": "Mars"}, "time_zone"),
    ],
)
def test_mistakes_name_their_field(rack, cast, model, values, field):
    add_node(cast, rack)
    if model is Region:
        fields = refused(lambda: add_thing(Region, values, by=cast.rex))
    else:
        fields = refused(lambda: edit_thing(model.objects.get(), values, by=cast.rex))
    assert list(fields) == [field]


def test_a_place_retires_only_when_empty_and_comes_back_by_its_name(rack, cast):
    node = add_node(cast, rack)
    with pytest.raises(Conflict, match="still holds 1 rack;"):
        retire_thing(rack.hall, by=cast.rex)
    with pytest.raises(Conflict, match="still holds 1 node;"):
        retire_thing(rack, by=cast.rex)
    retire_thing(node, by=cast.rex)
    retire_thing(rack, by=cast.rex)
    with pytest.raises(Conflict, match="is retired"):
        edit_thing(rack, {"row": "B"}, by=cast.rex)
    back = add_thing(Rack, {"hall": rack.hall, "name": "A01", "row": "B"}, by=cast.rex)
    assert (back.pk, back.retired_at, back.row) == (rack.pk, None, "B")


def test_a_node_its_scheduler_lists_does_not_retire(rack, cast):
    node = add_node(cast, rack)
    Node.objects.update(seen_at=node.created_at, state="idle")
    with pytest.raises(Conflict, match="local still lists n1"):
        retire_thing(node, by=cast.rex)


@pytest.mark.parametrize("person", ["olga", "mina", "vic", "sam"])
def test_only_operators_edit(rack, cast, person):
    by = getattr(cast, person)
    for action in (
        lambda: add_thing(Region, {"name": "x"}, by=by),
        lambda: edit_thing(rack, {"row": "B"}, by=by),
        lambda: retire_thing(rack, by=by),
    ):
        with pytest.raises(NotAllowed):
            action()
    rack.refresh_from_db()
    assert (rack.row, rack.retired_at) == ("", None)

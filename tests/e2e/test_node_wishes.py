"""Draining and resuming nodes in a real browser: with the keyboard alone, and as what is shown follows."""

from __future__ import annotations

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from apps.inventory.models import Cluster, Node
from apps.jobs.node_control import carry_out_nodes
from apps.jobs.reconcile import poll_nodes
from tests.e2e.conftest import serious_violations


@pytest.fixture
def node(cast, transactional_db) -> Node:
    poll_nodes(cast.cluster.pk)
    Cluster.objects.update(poll_succeeded_at=timezone.now())
    return Node.objects.get()


def test_a_node_is_drained_with_the_keyboard_and_the_page_follows(open_page, cast, node, live_server):
    page = open_page(cast.rex)
    page.goto(f"{live_server.url}/nodes/{node.pk}/")
    page.get_by_role("link", name="Drain …").focus()
    page.keyboard.press("Enter")
    reason = page.get_by_label("Why")
    expect(reason).to_be_focused()  # the form opens in the page, ready to type
    assert page.url == f"{live_server.url}/nodes/{node.pk}/"
    expect(page.get_by_role("form", name="Drain node-1?")).to_contain_text("No job runs there now.")
    assert serious_violations(page) == []
    page.keyboard.type("fan is loud")
    page.keyboard.press("Enter")
    status = page.locator("#node-status")
    expect(status).to_contain_text("draining …")
    expect(status).to_contain_text("asked by rex")
    assert serious_violations(page) == []
    carry_out_nodes(cast.cluster.pk)
    expect(status).to_contain_text("drained", timeout=10_000)
    expect(status).not_to_contain_text("asked by")
    expect(page.locator("#node-states tbody tr").first).to_contain_text("rex")
    expect(page.locator("#node-said")).to_contain_text("node-1: ▬ drained fan is loud")  # read aloud
    expect(page.get_by_role("link", name="Resume …")).to_be_visible()


def test_several_are_chosen_in_the_list(open_page, cast, node, live_server):
    now = timezone.now()
    Node.objects.bulk_create(Node(cluster=cast.cluster, name=f"x{n}", state="idle", seen_at=now) for n in range(4))
    page = open_page(cast.rex)
    page.goto(f"{live_server.url}/nodes/?q=x")
    button = page.get_by_role("button", name="Drain selected …")
    expect(button).to_be_hidden()
    page.get_by_label("Choose all on this page").check()
    page.get_by_label("Choose x2").uncheck()
    expect(page.locator(".bulk")).to_contain_text("3 chosen")
    assert serious_violations(page) == []
    button.click()
    expect(page.get_by_role("heading", name="Drain 3 nodes?")).to_be_visible()
    page.get_by_label("Why").fill("works on the feed")
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="3 nodes will be drained")).to_be_visible()
    assert set(Node.objects.filter(wanted="drain").values_list("name", flat=True)) == {"x0", "x1", "x3"}
    page.goto(f"{live_server.url}/nodes/?q=x")
    expect(page.get_by_text("draining …")).to_have_count(3)
    page.get_by_label("Choose x0").check()
    page.get_by_role("button", name="Resume selected …").click()
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="x0 will be resumed")).to_be_visible()

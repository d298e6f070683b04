"""Draining and resuming nodes: from what an operator asks to what the scheduler has done, and back on the page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.accounts.models import Notice
from apps.core.errors import Conflict, InvalidInput, NotAllowed
from apps.core.models import AuditEntry
from apps.inventory.models import Cluster, Node
from apps.inventory.wishes import ask_node, ask_nodes
from apps.jobs import node_control
from apps.jobs.dispatch import dispatch_jobs
from apps.jobs.models import Job
from apps.jobs.node_control import carry_out_nodes, jobs_on
from apps.jobs.reconcile import poll_nodes, reconcile_cluster, wake_forgotten
from apps.jobs.schedulers.base import ActionRefused
from apps.jobs.schedulers.registry import scheduler_for
from apps.jobs.states import JobState
from tests.jobs.helpers import follow, submit
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture
def node(cast) -> Node:
    """The local cluster's own node, as it reports it."""
    assert poll_nodes(cast.cluster.pk)
    return Node.objects.get(cluster=cast.cluster)


@pytest.fixture
def woken(monkeypatch) -> list[tuple[Any, ...]]:
    """Names and arguments of the tasks that are woken."""
    found: list[tuple[Any, ...]] = []

    def wake(name: str, *args: object, **more: object) -> None:
        found.append((name, *args))

    monkeypatch.setattr("apps.inventory.wishes.wake", wake)
    monkeypatch.setattr("apps.jobs.reconcile.wake", wake)
    return found


def break_scheduler(cast, jobs_root: Path) -> None:
    """Its spool cannot be used: a file stands where its folder should be."""
    (jobs_root / "file").write_text("")
    Cluster.objects.filter(pk=cast.cluster.pk).update(
        config={**cast.cluster.config, "spool_dir": str(jobs_root / "file" / "spool")}
    )


def mend_scheduler(cast) -> None:
    Cluster.objects.filter(pk=cast.cluster.pk).update(config=cast.cluster.config)


def history(node: Node) -> list[tuple[str, str, str]]:
    return list(node.state_changes.order_by("id").values_list("state", "reason", "source"))


def wish(node: Node) -> tuple[str, str]:
    node.refresh_from_db()
    return node.wanted, node.wanted_error


# -- who may ask, and what ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("person", ["olga", "mina", "vic", "sam"])
@pytest.mark.parametrize("action", ["drain", "resume"])
def test_only_operators_ask(cast, node, person, action):
    with pytest.raises(NotAllowed):
        ask_node(node, action, "fan is loud", by=getattr(cast, person))
    assert wish(node) == ("", "")


@pytest.mark.parametrize(
    "reason", ["", "   ", "two\nlines", "a\tb", "x" * 201, "nul \0", "turned \u202e round", "\x1b[31mred"]
)
def test_a_drain_needs_a_reason_of_one_line(cast, node, reason):
    with pytest.raises(InvalidInput) as raised:
        ask_node(node, "drain", reason, by=cast.rex)
    assert set(raised.value.fields) == {"reason"}


def test_what_is_neither_drain_nor_resume_is_nothing(cast, node):
    with pytest.raises(InvalidInput) as raised:
        ask_node(node, "reboot", "why not", by=cast.rex)
    assert set(raised.value.fields) == {"action"}


def test_nodes_that_cannot_be_asked_say_why_and_do_not_stop_the_others(cast, node):
    now = timezone.now()
    retired = Node.objects.create(cluster=cast.cluster, name="old", seen_at=now, retired_at=now)
    planned = Node.objects.create(cluster=cast.cluster, name="planned", state="planned")
    alone = Node.objects.create(name="alone", seen_at=now)
    result = ask_nodes([retired, planned, alone, node], "drain", "works", by=cast.rex)
    assert [one.name for one in result.asked] == [node.name]
    assert result.skipped == {
        retired.pk: "old is retired.",
        planned.pk: "local has not reported planned yet.",
        alone.pk: "alone belongs to no cluster, so no scheduler starts jobs on it.",
    }
    with pytest.raises(Conflict, match="is retired"):
        ask_node(retired, "drain", "works", by=cast.rex)


def test_a_node_in_service_has_nothing_to_resume(cast, node):
    with pytest.raises(Conflict, match="node-1 is in service; there is nothing to resume"):
        ask_node(node, "resume", by=cast.rex)


def test_asking_is_written_down_and_wakes_the_clusters_own_worker(cast, node, woken):
    ask_node(node, "drain", "  fan is loud ", by=cast.rex)
    assert (node.wanted, node.wanted_reason, node.wanted_by, node.wanted_error) == (
        "drain",
        "fan is loud",
        cast.rex,
        "",
    )
    entry = AuditEntry.objects.get(verb="node.drain")
    assert (entry.actor, entry.target_name) == (cast.rex, "node-1")
    assert entry.before == {"state": "idle"}
    assert entry.after == {"wanted": "drain", "reason": "fan is loud"}
    assert woken == [("jobs.carry_out_nodes", cast.cluster.pk)]


def test_a_double_click_asks_once(cast, node, woken):
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    first = node.wanted_at
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    assert node.wanted_at == first
    carry_out_nodes(cast.cluster.pk)
    ask_node(node, "drain", "fan is loud", by=cast.rex)  # it is so already
    assert AuditEntry.objects.filter(verb="node.drain").count() == 1
    assert wish(node) == ("", "") and len(woken) == 1


# -- carried out -------------------------------------------------------------------------------------------------------


def test_a_drained_node_starts_no_job_until_it_is_resumed_and_what_runs_goes_on(cast, node):
    running = submit(cast, "sleep 2", name="runs on")
    wait_until(lambda: _is_running(running), 20)
    assert jobs_on([node]) == 1
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    carry_out_nodes(cast.cluster.pk)
    node.refresh_from_db()
    assert (node.wanted, node.state, node.flags, node.reason) == ("", "draining", ["drain"], "fan is loud")
    waiting = submit(cast, "true")
    assert follow(running).state == JobState.COMPLETED
    follow_a_little(waiting)
    assert (waiting.state, waiting.reason) == (JobState.PENDING, "no job starts: node-1 is drained: fan is loud")
    poll_nodes(cast.cluster.pk)
    ask_node(node, "resume", by=cast.rex)
    carry_out_nodes(cast.cluster.pk)
    assert follow(waiting).state == JobState.COMPLETED
    assert jobs_on([node]) == 0 and jobs_on([]) == 0
    changes = history(node)
    assert ("draining", "fan is loud", "rex") in changes and ("drained", "fan is loud", "local") in changes
    assert changes[-1][2] == "rex" and changes[-1][0] in {"idle", "mixed"}
    assert node.state_changes.filter(source="rex").count() == 2


def test_an_operators_drain_outlives_a_stop_and_a_start_of_the_product(cast, node):
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    carry_out_nodes(cast.cluster.pk)
    scheduler = scheduler_for("local", cast.cluster.config)
    scheduler.pause("the product was stopped")
    scheduler.resume()
    poll_nodes(cast.cluster.pk)
    node.refresh_from_db()
    assert (node.state, node.reason) == ("drained", "fan is loud")
    scheduler.set_nodes(["node-1"], "resume")
    scheduler.pause("the product was stopped")
    scheduler.set_nodes(["node-1"], "resume")  # is not what a pause is ended with
    (seen,) = scheduler.nodes().nodes
    assert (seen.state, seen.reason) == ("drained", "the product was stopped")


def test_the_scheduler_is_down_at_the_click(cast, node, jobs_root, woken):
    break_scheduler(cast, jobs_root)
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    for _ in range(2):  # safe to run twice
        carry_out_nodes(cast.cluster.pk)
        wanted, error = wish(node)
        assert wanted == "drain" and "the spool folder cannot be used" in error
    assert node.state == "idle"
    Node.objects.update(wanted_at=timezone.now() - timezone.timedelta(seconds=6))
    woken.clear()
    wake_forgotten(expires_s=5)
    assert woken == [("jobs.carry_out_nodes", cast.cluster.pk)]
    mend_scheduler(cast)
    carry_out_nodes(cast.cluster.pk)
    assert wish(node) == ("", "") and node.state == "drained"
    assert history(node)[-1] == ("drained", "fan is loud", "rex")
    woken.clear()
    wake_forgotten(expires_s=5)
    assert woken == []


def test_a_cluster_that_is_off_keeps_the_wish(cast, node):
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    Cluster.objects.update(is_enabled=False)
    carry_out_nodes(cast.cluster.pk)
    assert wish(node) == ("drain", "")


def test_a_resume_replaces_a_drain_that_waits(cast, node):
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    ask_node(node, "resume", by=cast.rex)
    assert node.wanted == "resume"
    carry_out_nodes(cast.cluster.pk)
    assert wish(node) == ("", "") and node.state == "idle"
    assert history(node) == [("idle", "", "local")]


def test_a_wish_that_changes_while_it_is_carried_out_is_carried_out_too(cast, node, monkeypatch):
    """The second worker finds the first at work; the first takes the new wish along."""
    scheduler = scheduler_for("local", cast.cluster.config)
    told: list[str] = []
    real = scheduler.set_nodes

    def slow(names: Sequence[str], action: str, reason: str = "") -> None:
        told.append(action)
        if action == "drain":
            ask_node(node, "resume", by=cast.rex)
        real(names, action, reason)

    monkeypatch.setattr(scheduler, "set_nodes", slow)
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    carry_out_nodes(cast.cluster.pk)
    assert told == ["drain", "resume"]
    assert wish(node) == ("", "") and node.state == "idle"


def test_a_poll_in_between_knows_who_asked(cast, node):
    """The scheduler was told, and the worker died before it could look."""
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    scheduler_for("local", cast.cluster.config).set_nodes(["node-1"], "drain", "fan is loud")
    poll_nodes(cast.cluster.pk)
    assert history(node)[-1] == ("drained", "fan is loud", "rex")
    assert wish(node) == ("drain", "")
    carry_out_nodes(cast.cluster.pk)
    assert wish(node) == ("", "") and len(history(node)) == 2


def test_what_somebody_does_at_the_scheduler_is_not_put_down_to_us(cast, node):
    scheduler_for("local", cast.cluster.config).set_nodes(["node-1"], "drain", "by hand")
    poll_nodes(cast.cluster.pk)
    assert history(node)[-1] == ("drained", "by hand", "local")


def test_a_resume_says_why_where_the_scheduler_does_not(cast, node):
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    carry_out_nodes(cast.cluster.pk)
    ask_node(node, "resume", "new fan", by=cast.rex)
    carry_out_nodes(cast.cluster.pk)
    assert history(node)[-1] == ("idle", "new fan", "rex")


# -- refused -----------------------------------------------------------------------------------------------------------


def test_what_is_refused_is_not_tried_again_and_the_asker_is_told(cast, node):
    Node.objects.filter(pk=node.pk).update(name="node-9")
    node.refresh_from_db()
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    carry_out_nodes(cast.cluster.pk)
    said = "this cluster has no node node-9; its only node is node-1"
    assert wish(node) == ("", f"The scheduler refused to drain it: {said}")
    notice = Notice.objects.get(user=cast.rex)
    assert (notice.text, notice.level) == (f"local refused to drain node-9: {said}", "bad")
    assert notice.link == f"/nodes/{node.pk}/"
    carry_out_nodes(cast.cluster.pk)
    assert Notice.objects.count() == 1
    ask_node(node, "drain", "again", by=cast.rex)
    assert wish(node) == ("drain", "")


class Told:
    """A scheduler that writes down what it is told, and refuses some nodes."""

    def __init__(self, *refused: str) -> None:
        self.refused, self.calls = set(refused), []

    def set_nodes(self, names: Sequence[str], action: str, reason: str = "") -> None:
        self.calls.append((len(names), action, reason))
        if self.refused & set(names):
            raise ActionRefused("node is reserved")


@pytest.fixture
def many(cast) -> list[Node]:
    now = timezone.now()
    Node.objects.bulk_create(
        Node(cluster=cast.cluster, name=f"n{n:04}", state="idle", seen_at=now) for n in range(2000)
    )
    return list(Node.objects.order_by("name"))


def use(monkeypatch, scheduler: Told) -> Told:
    monkeypatch.setattr(node_control, "scheduler_for", lambda kind, config: scheduler)
    monkeypatch.setattr(node_control, "poll_nodes", lambda cluster_pk: True)
    return scheduler


def test_one_node_that_is_refused_does_not_take_the_others_with_it(cast, many, monkeypatch):
    told = use(monkeypatch, Told("n0007", "n1500"))
    ask_nodes(many, "drain", "works", by=cast.rex)
    carry_out_nodes(cast.cluster.pk)
    refused = Node.objects.filter(wanted_error__contains="refused").order_by("name")
    assert [node.name for node in refused] == ["n0007", "n1500"]
    assert not Node.objects.exclude(wanted="").exists() and len(told.calls) <= 50
    assert Notice.objects.get().text == "local refused to drain n0007 and 1 more: node is reserved"


def test_a_scheduler_that_refuses_everything_is_not_asked_two_thousand_times(cast, many, monkeypatch):
    told = use(monkeypatch, Told(*(node.name for node in many)))
    ask_nodes(many, "drain", "works", by=cast.rex)
    carry_out_nodes(cast.cluster.pk)
    assert len(told.calls) <= 100
    assert Node.objects.filter(wanted="", wanted_error__contains="node is reserved").count() == 2000
    assert Notice.objects.get().text == "local refused to drain n0000 and 1,999 more: node is reserved"


def test_two_thousand_nodes_cost_a_bounded_number_of_statements_and_one_call(cast, many, monkeypatch):
    told = use(monkeypatch, Told())
    with CaptureQueriesContext(connection) as asking:
        result = ask_nodes(many, "drain", "works", by=cast.rex)
    assert (len(result.asked), len(result.skipped)) == (2000, 0)
    with CaptureQueriesContext(connection) as carrying_out:
        carry_out_nodes(cast.cluster.pk)
    assert len(asking) <= 12 and len(carrying_out) <= 20
    assert told.calls == [(2000, "drain", "works")]
    assert AuditEntry.objects.filter(verb="node.drain").count() == 2000
    # What the scheduler shows did not follow, and the rows say so.
    assert Node.objects.filter(wanted="", wanted_error__contains="shows it otherwise").count() == 2000


def _is_running(job: Job) -> bool:
    follow_once(job)
    return job.state == JobState.RUNNING


def follow_once(job: Job) -> None:
    dispatch_jobs([job.pk])
    reconcile_cluster(job.cluster_id)
    job.refresh_from_db()


def follow_a_little(job: Job) -> None:
    """As long as a job takes that may start."""
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        follow_once(job)
        time.sleep(0.1)


@pytest.mark.django_db(transaction=True)
def test_a_real_worker_carries_it_out_and_makes_up_for_a_lost_wake(cast, node, real_worker, monkeypatch):
    def is_drained(flags: list[str]) -> bool:
        node.refresh_from_db()
        return (node.wanted, node.flags) == ("", flags)

    real_worker(processes=2, beat=True)
    ask_node(node, "drain", "fan is loud", by=cast.rex)
    wait_until(lambda: is_drained(["drain"]), 20)
    monkeypatch.setattr("apps.inventory.wishes.wake", lambda *args, **more: None)
    ask_node(node, "resume", by=cast.rex)
    wait_until(lambda: is_drained([]), 30)
    assert [source for _, _, source in history(node)] == ["local", "rex", "rex"]

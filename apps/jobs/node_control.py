"""Carry out what operators want of nodes: drain, resume. Safe to run twice; one worker at a time for each cluster."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from django.db.models import Q

from apps.accounts.actions import notify
from apps.accounts.models import User
from apps.inventory.models import Cluster, Node
from apps.inventory.wishes import close_wishes, keep_wishes, open_wishes, refuse_wishes
from apps.jobs.models import JobAttempt
from apps.jobs.reconcile import alone, poll_nodes
from apps.jobs.schedulers.base import ActionRefused, Scheduler, SchedulerError
from apps.jobs.schedulers.registry import scheduler_for
from apps.jobs.states import ACTIVE

log = logging.getLogger(__name__)

# Wishes that come while one is carried out are taken along; whoever asks without end waits for the next task.
MAX_ROUNDS = 5
# One node that is refused must not take the others with it; so many calls find it, then the rest is refused too.
MAX_CALLS = 50


def carry_out_nodes(cluster_pk: int) -> None:
    """Tell the scheduler, then look what its nodes do. A scheduler that does not answer is asked again later.

    Alone, since of two workers the one with the older wish could come last.
    """
    with alone("node_control", cluster_pk) as mine:
        cluster = Cluster.objects.filter(pk=cluster_pk, is_enabled=True).first() if mine else None
        if cluster is None:
            return
        for _ in range(MAX_ROUNDS):
            wanting = open_wishes(cluster_pk)
            if not wanting or not _carry_out(cluster, wanting):
                return


def jobs_on(nodes: Sequence[Node]) -> int:
    """How many jobs run on any of these nodes."""
    names: dict[int, list[str]] = defaultdict(list)
    for node in nodes:
        if node.cluster_id is not None:
            names[node.cluster_id].append(node.name)
    there = Q(pk__in=[])
    for cluster_pk, of_cluster in names.items():
        there |= Q(cluster=cluster_pk, nodes__overlap=of_cluster)
    return JobAttempt.objects.filter(there, state__in=ACTIVE).count()


def _carry_out(cluster: Cluster, wanting: Sequence[Node]) -> bool:
    """One round; False when what is left must wait."""
    groups: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in wanting:
        groups[node.wanted, node.wanted_reason].append(node)
    taken: list[Node] = []
    answers = True
    try:
        scheduler = scheduler_for(cluster.scheduler, cluster.config)
        for (action, reason), nodes in groups.items():
            refused = _Group(scheduler, action, reason).send(nodes)
            for text, unlucky in refused.items():
                _refuse(cluster, action, unlucky, text)
            gone = {node.pk for unlucky in refused.values() for node in unlucky}
            taken += [node for node in nodes if node.pk not in gone]
    except SchedulerError as error:
        log.warning("%s: nodes are not drained or resumed yet: %s", cluster, error)
        answers, done = False, {node.pk for node in taken}
        keep_wishes(cluster.pk, [node for node in wanting if node.pk not in done], str(error))
    # The view is recorded while the wish still stands, so that the history knows who asked. Without a view the wish
    # stays, and is asked again with the next sweep.
    if taken and not poll_nodes(cluster.pk):
        return False
    close_wishes(cluster.pk, taken)
    return answers


class _Group:
    """Nodes of which the same is wanted, sent in as few calls as they can be."""

    def __init__(self, scheduler: Scheduler, action: str, reason: str) -> None:
        self._scheduler, self._action, self._reason = scheduler, action, reason
        self._calls = 0

    def send(self, nodes: Sequence[Node]) -> dict[str, list[Node]]:
        """Those that are refused, by what the scheduler says; halves are tried until single nodes are left."""
        self._calls += 1
        try:
            self._scheduler.set_nodes([node.name for node in nodes], self._action, self._reason)
        except ActionRefused as error:
            if len(nodes) == 1 or self._calls >= MAX_CALLS:
                return {str(error): list(nodes)}
            refused: dict[str, list[Node]] = defaultdict(list)
            for half in (nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]):
                for text, unlucky in self.send(half).items():
                    refused[text] += unlucky
            return refused
        return {}


def _refuse(cluster: Cluster, action: str, nodes: Sequence[Node], text: str) -> None:
    """One notice for each asker and refusal, however many nodes it is about."""
    log.warning("%s refused to %s %d nodes: %s", cluster, action, len(nodes), text)
    by_asker: dict[User, list[Node]] = defaultdict(list)
    for node in refuse_wishes(cluster.pk, nodes, text):
        if node.wanted_by is not None:
            by_asker[node.wanted_by].append(node)
    for asker, theirs in by_asker.items():
        first = theirs[0]
        more = f" and {len(theirs) - 1:,} more" if len(theirs) > 1 else ""
        notify(
            asker,
            key=f"node:{first.pk}:{action}:{first.wanted_at:%Y%m%dT%H%M%S.%f}",
            level="bad",
            text=f"{cluster} refused to {action} {first}{more}: {text}",
            link=f"/nodes/{first.pk}/",
        )

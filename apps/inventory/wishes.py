"""What operators want of nodes: drain and resume. The wish stands on the row until a worker has carried it out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from apps.core.audit import audit_fields
from apps.core.errors import Conflict, InvalidInput
from apps.core.models import AuditEntry
from apps.core.permissions import require, site_roles
from apps.core.wake import wake
from apps.inventory.models import Cluster, Node, NodeState, WantedOfNode

DRAIN, RESUME = WantedOfNode.DRAIN.value, WantedOfNode.RESUME.value
MAX_NODES = 10_000
MAX_REASON = 200
_IN_SERVICE = frozenset({NodeState.IDLE, NodeState.MIXED, NodeState.ALLOCATED})
_BATCH = 2000


@dataclass
class AskedNodes:
    """Nodes that will be as asked, or are so already; and by id why others will not."""

    asked: list[Node] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)


@transaction.atomic
def ask_nodes(nodes: Iterable[Node], action: str, reason: str = "", *, by: Any) -> AskedNodes:
    """Drain or resume each node that can be; one that cannot does not stop the others. Asking twice is asking once.

    What was asked before and is not carried out yet is replaced. Raises InvalidInput for a reason that is no reason.
    """
    if action not in {DRAIN, RESUME}:
        raise InvalidInput({"action": f"{action[:40]!r} is neither {DRAIN} nor {RESUME}."})
    require(f"node.{action}", site_roles(by))
    reason = _checked_reason(action, reason)
    given = {node.pk: node for node in nodes}
    if not 1 <= len(given) <= MAX_NODES:
        raise InvalidInput({"ids": f"{len(given):,} nodes; from 1 to {MAX_NODES:,} can be asked of in one go."})
    # Clusters first: the view of a cluster is recorded under the same lock, so the two never wait for each other.
    _lock_clusters({node.cluster_id for node in given.values()})
    rows = Node.objects.select_for_update(of=("self",)).select_related("cluster").filter(pk__in=given).order_by("pk")
    result, changed = AskedNodes(), []
    for row in rows:
        why_not = _why_not(row, action)
        if why_not:
            result.skipped[row.pk] = why_not
            continue
        result.asked.append(row)
        if not _is_so(row, action, reason):
            changed.append(row)
    _store(changed, action, reason, by)
    return result


def ask_node(node: Node, action: str, reason: str = "", *, by: Any) -> Node:
    """As `ask_nodes`, for one. Raises Conflict where it cannot be."""
    result = ask_nodes([node], action, reason, by=by)
    for why in result.skipped.values():
        raise Conflict(why)
    node.refresh_from_db()
    return node


def offered(node: Node) -> tuple[str, ...]:
    """What an operator can usefully ask of it now."""
    is_or_will_be_drained = node.wanted == DRAIN or (node.wanted != RESUME and "drain" in node.flags)
    may_drain = _why_not(node, DRAIN) is None and not is_or_will_be_drained
    may_resume = _why_not(node, RESUME) is None and node.wanted != RESUME
    return tuple(action for action, may in ((DRAIN, may_drain), (RESUME, may_resume)) if may)


# -- for the worker that carries them out ------------------------------------------------------------------------------


def open_wishes(cluster_pk: int) -> list[Node]:
    wanting = Node.objects.filter(cluster=cluster_pk, retired_at__isnull=True).exclude(wanted=WantedOfNode.NOTHING)
    return list(wanting.order_by("wanted_at", "name"))


def close_wishes(cluster_pk: int, nodes: Sequence[Node]) -> None:
    """The scheduler has taken them and has been looked at since. Where it shows another thing, the row says so."""
    with transaction.atomic():
        _lock_clusters({cluster_pk})
        rows = Node.objects.filter(pk__in=[node.pk for node in nodes])
        unlike = [row.pk for row in rows if row.wanted and not is_as_wanted(row)]
        for action, reason in {(node.wanted, node.wanted_reason) for node in nodes}:
            mine = _still_wanted(nodes, action, reason)
            said = f"The scheduler took the order to {action} it and shows it otherwise."
            mine.filter(pk__in=unlike).update(wanted_error=said)
            mine.exclude(pk__in=unlike).update(wanted_error="")
            mine.update(wanted=WantedOfNode.NOTHING, updated_at=timezone.now())


def keep_wishes(cluster_pk: int, nodes: Sequence[Node], error: str) -> None:
    """Not carried out yet, and why."""
    with transaction.atomic():
        _lock_clusters({cluster_pk})
        for action, reason in {(node.wanted, node.wanted_reason) for node in nodes}:
            _still_wanted(nodes, action, reason).update(wanted_error=error[:500])


def refuse_wishes(cluster_pk: int, nodes: Sequence[Node], error: str) -> list[Node]:
    """The scheduler will not; returns those whose wish ended with that."""
    refused: list[Node] = []
    with transaction.atomic():
        _lock_clusters({cluster_pk})
        for action, reason in {(node.wanted, node.wanted_reason) for node in nodes}:
            mine = _still_wanted(nodes, action, reason)
            refused += mine.select_related("wanted_by")
            said = f"The scheduler refused to {action} it: {error}"[:500]
            mine.update(wanted=WantedOfNode.NOTHING, wanted_error=said, updated_at=timezone.now())
    return refused


def is_as_wanted(node: Node) -> bool:
    if node.wanted == DRAIN:
        return "drain" in node.flags
    return "drain" not in node.flags and node.state not in {NodeState.DOWN, NodeState.UNKNOWN}


def _still_wanted(nodes: Sequence[Node], action: str, reason: str) -> QuerySet[Node]:
    """Those of `nodes` that want just this; one that has been asked something else meanwhile is left alone."""
    pks = [node.pk for node in nodes if (node.wanted, node.wanted_reason) == (action, reason)]
    return Node.objects.filter(pk__in=pks, wanted=action, wanted_reason=reason)


# -- asking ------------------------------------------------------------------------------------------------------------


def _checked_reason(action: str, reason: str) -> str:
    reason = reason.strip()
    if not reason and action == DRAIN:
        raise InvalidInput({"reason": "Say why: it stands beside the node for everybody who wonders."})
    if len(reason) > MAX_REASON:
        raise InvalidInput({"reason": f"{len(reason):,} characters; {MAX_REASON} is the limit."})
    if not reason.isprintable():
        raise InvalidInput({"reason": "Write one line of printable characters."})
    return reason


def _lock_clusters(pks: set[int | None]) -> None:
    locked = Cluster.objects.select_for_update(no_key=True).filter(pk__in=[pk for pk in pks if pk]).order_by("pk")
    list(locked.values_list("pk"))


def _why_not(node: Node, action: str) -> str | None:
    if node.retired_at is not None:
        return f"{node} is retired."
    if node.cluster is None:
        return f"{node} belongs to no cluster, so no scheduler starts jobs on it."
    if node.seen_at is None:
        return f"{node.cluster} has not reported {node} yet."
    is_open = node.state in _IN_SERVICE and "drain" not in node.flags
    if action == RESUME and is_open and node.wanted == WantedOfNode.NOTHING:
        return f"{node} is in service; there is nothing to resume."
    return None


def _is_so(node: Node, action: str, reason: str) -> bool:
    """Whether just this has been asked before: the second click of two, or a drain that stands with this reason."""
    if node.wanted != WantedOfNode.NOTHING:
        return node.wanted == action and node.wanted_reason == reason
    return action == DRAIN and "drain" in node.flags and node.reason == reason


def _store(nodes: Sequence[Node], action: str, reason: str, by: Any) -> None:
    entries = [
        AuditEntry(
            **audit_fields(
                f"node.{action}",
                by=by,
                target=node,
                before=_told({"state": node.state, "wanted": node.wanted, "reason": _reason_now(node)}),
                after=_told({"wanted": action, "reason": reason}),
            )
        )
        for node in nodes
    ]
    AuditEntry.objects.bulk_create(entries, batch_size=_BATCH)
    now = timezone.now()
    Node.objects.filter(pk__in=[node.pk for node in nodes]).update(
        wanted=action, wanted_reason=reason, wanted_by=by, wanted_at=now, wanted_error="", updated_at=now
    )
    for cluster in {node.cluster for node in nodes if node.cluster is not None}:
        wake("jobs.carry_out_nodes", cluster.pk, queue=cluster.queue)


def _reason_now(node: Node) -> str:
    return node.reason if node.wanted == WantedOfNode.NOTHING else node.wanted_reason


def _told(values: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}

"""Verbs of inventory: what schedulers report, who holds which card, and clusters themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from apps.core.audit import record
from apps.core.errors import InvalidInput
from apps.core.permissions import require, site_roles
from apps.inventory.models import Accelerator, AcceleratorUse, Cluster, Site
from apps.inventory.observed import record_cluster_view

__all__ = [
    "close_accelerator_uses",
    "edit_cluster",
    "ensure_cluster",
    "open_accelerator_uses",
    "record_cluster_view",
    "record_poll_failure",
    "record_poll_success",
]


class Card(Protocol):
    """One card as a scheduler names it: by UUID where it tells it, else by node and index."""

    node: str
    index: int
    uuid: str | None


@transaction.atomic
def ensure_cluster(
    name: str, *, title: str, scheduler: str, config: Mapping[str, Any], site: Site | None = None
) -> Cluster:
    """The cluster of this name, made or brought up to date. What an operator changed by hand (title, on/off) stays."""
    cluster, is_new = Cluster.objects.select_for_update().get_or_create(
        name=name, defaults={"title": title, "scheduler": scheduler, "config": dict(config), "site": site}
    )
    if is_new:
        record("cluster.add", by=None, target=cluster, after={"scheduler": scheduler})
    elif cluster.config != dict(config) or cluster.scheduler != scheduler:
        cluster.config, cluster.scheduler = dict(config), scheduler
        cluster.save(update_fields=["config", "scheduler", "updated_at"])
    return cluster


@transaction.atomic
def edit_cluster(cluster: Cluster, *, title: str, is_enabled: bool, site: Site | None, by: Any) -> Cluster:
    require("cluster.edit", site_roles(by))
    before = {"title": cluster.title, "is_enabled": cluster.is_enabled, "site": str(cluster.site or "")}
    cluster.title, cluster.is_enabled, cluster.site = title, is_enabled, site
    try:
        cluster.clean_fields(exclude=[f.name for f in cluster._meta.fields if f.name not in {"title", "is_enabled"}])
    except ValidationError as error:
        raise InvalidInput(error.message_dict) from None
    cluster.save()
    after = {"title": title, "is_enabled": is_enabled, "site": str(site or "")}
    record("cluster.edit", by=by, target=cluster, before=before, after=after)
    return cluster


def record_poll_success(cluster: Cluster, *, cursor: str, duration_ms: int) -> None:
    Cluster.objects.filter(pk=cluster.pk).update(
        poll_cursor=cursor, poll_succeeded_at=timezone.now(), poll_error="", poll_duration_ms=duration_ms
    )


def record_poll_failure(cluster: Cluster, *, error: str, duration_ms: int) -> None:
    """The last good state stays as it is; pages mark it stale and show operators the error."""
    Cluster.objects.filter(pk=cluster.pk).update(
        poll_failed_at=timezone.now(), poll_error=error[:1000] or "unknown error", poll_duration_ms=duration_ms
    )


def open_accelerator_uses(cluster: Cluster, attempt_key: str, cards: Iterable[Card], at: datetime) -> None:
    """Attempt `attempt_key` holds these cards from `at` on. A card inventory does not know yet is left out."""
    cards = list(cards)
    by_uuid = {a.uuid: a for a in Accelerator.objects.filter(uuid__in=[c.uuid for c in cards if c.uuid])}
    by_place = {
        (a.node.name, a.index): a
        for a in Accelerator.objects.filter(
            node__cluster=cluster, node__name__in={c.node for c in cards if not c.uuid}, retired_at__isnull=True
        ).select_related("node")
        if a.node is not None
    }
    found = [by_uuid.get(c.uuid) if c.uuid else by_place.get((c.node, c.index)) for c in cards]
    AcceleratorUse.objects.bulk_create(
        [
            AcceleratorUse(cluster=cluster, attempt_key=attempt_key, accelerator=accelerator, started_at=at)
            for accelerator in found
            if accelerator is not None
        ],
        ignore_conflicts=True,
    )


def close_accelerator_uses(attempt_key: str, at: datetime) -> None:
    for use in AcceleratorUse.objects.filter(attempt_key=attempt_key, ended_at__isnull=True):
        # Clocks differ between machines; a use never ends before it began.
        AcceleratorUse.objects.filter(pk=use.pk).update(ended_at=max(at, use.started_at))

"""Questions about places, machines and clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Count, F, Prefetch, Q, QuerySet, Sum
from django.utils import timezone

from apps.core.errors import InvalidInput, NotFound
from apps.core.models import AuditEntry
from apps.inventory.models import Accelerator, AcceleratorUse, Cluster, Hall, Node, Partition, Rack, Region, Site
from apps.inventory.noderange import is_range, node_names

STALE_AFTER_S = 30
PAGE_SIZE = 100


def usable_clusters() -> QuerySet[Cluster]:
    return Cluster.objects.filter(is_enabled=True)


def partitions_of(cluster: Cluster) -> QuerySet[Partition]:
    return Partition.objects.filter(cluster=cluster, retired_at__isnull=True)


def is_stale(cluster: Cluster) -> bool:
    """Whether what we show of it is older than it should be."""
    if not cluster.is_enabled:
        return False
    at = cluster.poll_succeeded_at
    return at is None or timezone.now() - at > timedelta(seconds=STALE_AFTER_S)


def cluster_named(name: str) -> Cluster:
    cluster = Cluster.objects.select_related("site").filter(name=name).first()
    if cluster is None:
        raise NotFound(f"There is no cluster {name}.")
    return cluster


@dataclass(frozen=True)
class ClusterSummary:
    """Counts of a cluster's nodes by state; CPUs and cards used of all. None: nothing is known."""

    cluster: Cluster
    nodes: int
    by_state: dict[str, int]
    cpus: int | None
    cpus_used: int | None
    accelerators: int | None
    is_stale: bool


def cluster_summaries() -> list[ClusterSummary]:
    """One for each cluster, in two queries."""
    rows = (
        Node.objects.filter(retired_at__isnull=True, cluster__isnull=False)
        .values("cluster_id", "state")
        .annotate(n=Count("id"), cpus=Sum("cpus"), used=Sum("cpus_used"), cards=Sum("accelerator_count"))
    )
    by_cluster: dict[int, list[dict[str, int]]] = {}
    for row in rows:
        by_cluster.setdefault(row["cluster_id"], []).append(row)
    return [_summary(cluster, by_cluster.get(cluster.pk, [])) for cluster in Cluster.objects.select_related("site")]


def cluster_summary(cluster: Cluster) -> ClusterSummary:
    rows = (
        Node.objects.filter(retired_at__isnull=True, cluster=cluster)
        .values("state")
        .annotate(n=Count("id"), cpus=Sum("cpus"), used=Sum("cpus_used"), cards=Sum("accelerator_count"))
    )
    return _summary(cluster, list(rows))


def _summary(cluster: Cluster, rows: list[dict[str, int]]) -> ClusterSummary:
    def total(name: str) -> int | None:
        values = [row[name] for row in rows if row[name] is not None]
        return sum(values) if values else None

    states = Counter({row["state"]: row["n"] for row in rows})
    return ClusterSummary(
        cluster=cluster,
        nodes=sum(states.values()),
        by_state=dict(states.most_common()),
        cpus=total("cpus"),
        cpus_used=total("used"),
        accelerators=total("cards"),
        is_stale=is_stale(cluster),
    )


@dataclass(frozen=True)
class NodeFilters:
    cluster: str | None = None
    state: str | None = None
    partition: str | None = None
    node_type: str | None = None
    q: str | None = None


@dataclass(frozen=True)
class NodePage:
    """Ordered by name, then id; `next` is the id to go on after."""

    rows: list[Node] = field(default_factory=list)
    next: int | None = None


def node_list(filters: NodeFilters, *, after: int | None = None, size: int = PAGE_SIZE) -> NodePage:
    nodes = Node.objects.filter(retired_at__isnull=True)
    nodes = nodes.select_related("cluster", "rack__hall", "node_type", "wanted_by")
    nodes = filtered_nodes(nodes, filters)
    if after is not None:
        edge = Node.objects.filter(pk=after).first()
        if edge is None:
            raise InvalidInput({"after": "There is no such node to go on from; start at the first page."})
        nodes = nodes.filter(Q(name__gt=edge.name) | Q(name=edge.name, pk__gt=edge.pk))
    rows = list(nodes.order_by("name", "pk")[: size + 1])
    return NodePage(rows[:size], rows[size - 1].pk if len(rows) > size else None)


def filtered_nodes(nodes: QuerySet[Node], filters: NodeFilters) -> QuerySet[Node]:
    """Raises InvalidInput for names that cannot be read."""
    if filters.cluster:
        nodes = nodes.filter(cluster__name=filters.cluster)
    if filters.state:
        nodes = nodes.filter(state=filters.state)
    if filters.partition:
        # A subquery, not a join: a node in partitions of one name on two clusters is still one row.
        members = Node.partitions.through.objects
        nodes = nodes.filter(pk__in=members.filter(partition__name=filters.partition).values("node_id"))
    if filters.node_type:
        nodes = nodes.filter(node_type__name=filters.node_type)
    return nodes.filter(_named(filters.q)) if filters.q else nodes


def _named(text: str) -> Q:
    """`gpu[001-128]` as Slurm writes it, else a part of the name."""
    if is_range(text):
        return Q(name__in=node_names(text, field="q"))
    return Q(name__icontains=text)


def node_of(pk: int) -> Node:
    node = (
        Node.objects.select_related(
            "cluster__site", "rack__hall__site__region", "node_type__accelerator_model", "wanted_by"
        )
        .filter(pk=pk)
        .first()
    )
    if node is None:
        raise NotFound("There is no such node.")
    return node


# The first that a node of the hall is in is the hall's worst.
WORST_FIRST = ("down", "unknown", "drained", "draining", "planned", "mixed", "allocated", "idle")


@dataclass(frozen=True)
class HallSummary:
    hall: Hall
    racks: int
    by_state: dict[str, int]

    @property
    def nodes(self) -> int:
        return sum(self.by_state.values())

    @property
    def worst(self) -> str | None:
        return next((state for state in WORST_FIRST if state in self.by_state), None)


@dataclass(frozen=True)
class SiteSummary:
    site: Site
    halls: list[HallSummary]


@dataclass(frozen=True)
class RegionSummary:
    region: Region
    sites: list[SiteSummary]


def site_tree() -> list[RegionSummary]:
    """All places down to the halls, with what stands in them, in five queries."""
    racks = Rack.objects.filter(retired_at__isnull=True).values("hall").annotate(n=Count("id")).order_by()
    rack_counts = {row["hall"]: row["n"] for row in racks}
    standing = Node.objects.filter(retired_at__isnull=True, rack__isnull=False)
    states: dict[int, dict[str, int]] = {}
    for row in standing.values("rack__hall", "state").annotate(n=Count("id")).order_by("-n", "state"):
        states.setdefault(row["rack__hall"], {})[row["state"]] = row["n"]
    halls: dict[int, list[HallSummary]] = {}
    for hall in Hall.objects.filter(retired_at__isnull=True):
        summary = HallSummary(hall, rack_counts.get(hall.pk, 0), states.get(hall.pk, {}))
        halls.setdefault(hall.site_id, []).append(summary)
    sites: dict[int, list[SiteSummary]] = {}
    for site in Site.objects.filter(retired_at__isnull=True):
        sites.setdefault(site.region_id, []).append(SiteSummary(site, halls.get(site.pk, [])))
    regions = Region.objects.filter(retired_at__isnull=True)
    return [RegionSummary(region, sites.get(region.pk, [])) for region in regions]


def hall_with_racks(pk: int) -> Hall:
    """The hall, its racks and their nodes in three queries."""
    standing = Node.objects.filter(retired_at__isnull=True).order_by(F("position_u").desc(nulls_last=True), "name")
    racks = Rack.objects.filter(retired_at__isnull=True).prefetch_related(Prefetch("nodes", queryset=standing))
    hall = (
        Hall.objects.select_related("site__region")
        .prefetch_related(Prefetch("racks", queryset=racks))
        .filter(pk=pk)
        .first()
    )
    if hall is None:
        raise NotFound("There is no such hall.")
    return hall


def card_uses(node: Node) -> list[tuple[Accelerator, AcceleratorUse | None]]:
    """The node's cards by index, each with who holds it now; two queries."""
    cards = list(node.accelerators.filter(retired_at__isnull=True).order_by("index"))
    uses = {use.accelerator_id: use for use in AcceleratorUse.objects.filter(accelerator__in=cards, ended_at=None)}
    return [(card, uses.get(card.pk)) for card in cards]


def history_of(row: Any, limit: int = 50) -> list[AuditEntry]:
    """What people and manifests changed of it, newest first."""
    kind = str(row._meta.model_name)
    return list(AuditEntry.objects.filter(target_type=kind, target_id=str(row.pk)).order_by("-id")[:limit])

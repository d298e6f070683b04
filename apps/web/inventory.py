"""Pages of places, nodes, clusters and the catalogue; what operators change of them is in site_edits.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path
from django.views.decorators.http import require_GET, require_POST

from apps.core.errors import InvalidInput
from apps.inventory.actions import edit_cluster
from apps.inventory.models import AcceleratorModel, Cluster, Node, NodeState, NodeType, Rack
from apps.inventory.queries import (
    NodeFilters,
    card_uses,
    cluster_named,
    cluster_summaries,
    cluster_summary,
    hall_with_racks,
    history_of,
    is_stale,
    node_list,
    node_of,
    partitions_of,
    site_tree,
)
from apps.inventory.wishes import offered
from apps.jobs.models import Job
from apps.jobs.rights import visible_jobs
from apps.web.forms import ClusterForm
from apps.web.render import allows, form_errors, fragment, page, toast
from apps.web.templatetags.show import STATES

_NODE_FILTERS = ("cluster", "state", "partition", "node_type", "q")


@require_GET
@allows("inventory.view")
def site(request: HttpRequest) -> HttpResponse:
    return page(request, "inventory/site.html", {"nav": "site", "regions": site_tree(), "tab": "site"})


@dataclass(frozen=True)
class DrawnNode:
    """`row` and `span` are lines of the rack's grid, row 1 at the top; no row: its position is not known."""

    node: Node
    row: int | None
    span: int
    colour: str
    glyph: str
    word: str


@require_GET
@allows("inventory.view")
def hall(request: HttpRequest, pk: int) -> HttpResponse:
    found = hall_with_racks(pk)
    racks = [(rack, [_drawn(node, rack) for node in rack.nodes.all()]) for rack in found.racks.all()]
    nodes = sum(len(drawn) for _, drawn in racks)
    return page(request, "inventory/hall.html", {"nav": "site", "hall": found, "racks": racks, "node_count": nodes})


def _drawn(node: Node, rack: Rack) -> DrawnNode:
    colour, glyph, word = STATES.get(node.state, ("idle", "?", node.state))
    row = None if node.position_u is None else rack.height_u - (node.position_u + node.height_u - 1) + 1
    return DrawnNode(node, row if row is not None and row >= 1 else None, node.height_u, colour, glyph, word)


@require_GET
@allows("inventory.view")
def nodes(request: HttpRequest) -> HttpResponse:
    chosen = {name: request.GET.get(name, "").strip()[:200].replace("\0", "") for name in _NODE_FILTERS}
    problems: dict[str, list[str]] = {}
    after = request.GET.get("after", "")
    try:
        if after and not (after.isascii() and after.isdigit() and len(after) < 19):
            raise InvalidInput({"after": "This is no node to go on from; start at the first page."})
        filters = NodeFilters(**{name: value or None for name, value in chosen.items()})
        shown = node_list(filters, after=int(after) if after else None)
    except InvalidInput as error:  # the page stays, and says which filter was no use
        problems, shown = error.fields, node_list(NodeFilters())
    context = {
        "nav": "site",
        "tab": "nodes",
        "page": shown,
        "chosen": chosen,
        "problems": problems,
        "has_filters": any(chosen.values()),
        "states": NodeState.values,
        "clusters": Cluster.objects.values_list("name", flat=True)[:200],
        "types": NodeType.objects.filter(nodes__isnull=False).distinct().values_list("name", flat=True)[:200],
        "is_moving": any(node.wanted for node in shown.rows),
    }
    if request.headers.get("HX-Request"):
        return fragment(request, "inventory/_node_rows.html", context)
    return page(request, "inventory/nodes.html", context)


@require_GET
@allows("inventory.view")
def node(request: HttpRequest, pk: int) -> HttpResponse:
    found = node_of(pk)
    status = {
        "node": found,
        "changes": found.state_changes.order_by("-at", "-id")[:50],
        "is_stale": found.cluster is not None and is_stale(found.cluster),
        "offered": offered(found) if request.user.is_operator else (),
    }
    if request.headers.get("HX-Request"):
        return fragment(request, "inventory/_node_status.html", status | {"is_fragment": True})
    cards = card_uses(found)
    job_ids = {use.attempt_key.partition(":")[0] for _, use in cards if use is not None}
    mine = visible_jobs(request.user, Job.objects.filter(public_id__in=job_ids))
    names: dict[str, str] = dict(mine.values_list("public_id", "name"))
    context = {
        "nav": "site",
        "tab": "nodes",
        "cards": [(card, use, _job_of(use, names)) for card, use in cards],
        "partitions": found.partitions.filter(retired_at__isnull=True),
        "history": history_of(found),
    }
    return page(request, "inventory/node.html", status | context)


def _job_of(use: Any, names: dict[str, str]) -> tuple[str, str] | None:
    """Id and name of the job that holds a card, if this person may see it."""
    public_id = "" if use is None else use.attempt_key.partition(":")[0]
    return (public_id, names[public_id]) if public_id in names else None


@require_GET
@allows("cluster.view")
def clusters(request: HttpRequest) -> HttpResponse:
    return page(request, "inventory/clusters.html", {"nav": "clusters", "summaries": cluster_summaries()})


@require_GET
@allows("cluster.view")
def cluster(request: HttpRequest, name: str) -> HttpResponse:
    return _show_cluster(request, name, None)


@require_POST
@allows("cluster.edit")
def cluster_edit(request: HttpRequest, name: str) -> HttpResponse:
    found, form = cluster_named(name), ClusterForm(request.POST)
    if form.is_valid():
        with form_errors(form):
            edit_cluster(found, site=found.site, by=request.user, **form.cleaned_data)
            toast(request, "Saved.")
            return redirect("web:cluster", name)
    return _show_cluster(request, name, form)


def _show_cluster(request: HttpRequest, name: str, form: ClusterForm | None) -> HttpResponse:
    found = cluster_named(name)
    context = {
        "nav": "clusters",
        "summary": cluster_summary(found),
        "cluster": found,
        "partitions": partitions_of(found),
        "form": form or ClusterForm(initial={"title": found.title, "is_enabled": found.is_enabled}),
        "history": history_of(found) if request.user.is_operator else [],
    }
    return page(request, "inventory/cluster.html", context, 422 if form else 200)


@require_GET
@allows("inventory.view")
def catalogue(request: HttpRequest) -> HttpResponse:
    context = {
        "nav": "site",
        "tab": "catalogue",
        "types": NodeType.objects.select_related("accelerator_model"),
        "models": AcceleratorModel.objects.all(),
    }
    return page(request, "inventory/catalogue.html", context)


urlpatterns = [
    path("site/", site, name="site"),
    path("site/catalogue/", catalogue, name="catalogue"),
    path("site/halls/<int:pk>/", hall, name="hall"),
    path("nodes/", nodes, name="nodes"),
    path("nodes/<int:pk>/", node, name="node"),
    path("clusters/", clusters, name="clusters"),
    path("clusters/<slug:name>/", cluster, name="cluster"),
    path("clusters/<slug:name>/edit/", cluster_edit, name="cluster-edit"),
]

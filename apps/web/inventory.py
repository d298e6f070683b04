"""Places, nodes, clusters, the catalogue, and the manifest."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.core.errors import InvalidInput
from apps.inventory.actions import edit_cluster, edit_node
from apps.inventory.models import AcceleratorModel, AcceleratorUse, Cluster, NodeState, NodeType, Rack
from apps.inventory.queries import (
    NodeFilters,
    cluster_named,
    cluster_summaries,
    cluster_summary,
    hall_with_racks,
    is_stale,
    node_list,
    node_of,
    partitions_of,
    site_tree,
)
from apps.web.forms import ClusterForm, NodeForm
from apps.web.render import allows, form_errors, page, toast

_COLOURS = {
    "idle": ("ok", "○"),
    "mixed": ("info", "◐"),
    "allocated": ("info", "●"),
    "down": ("bad", "✗"),
    "drained": ("warn", "▬"),
    "draining": ("warn", "▭"),
    "planned": ("", "·"),
    "unknown": ("warn", "?"),
}


@require_GET
@allows("inventory.view")
def site(request: HttpRequest) -> HttpResponse:
    return page(request, "inventory/site.html", {"nav": "site", "regions": site_tree(), "tab": "site"})


@require_GET
@allows("inventory.view")
def hall(request: HttpRequest, pk: int) -> HttpResponse:
    found = hall_with_racks(pk)
    racks = [(rack, _elevation(rack)) for rack in found.racks.all()]
    return page(request, "inventory/hall.html", {"nav": "site", "hall": found, "racks": racks})


def _elevation(rack: Rack) -> list[dict[str, Any]]:
    """Each node with the grid rows it fills: row 1 is the top unit."""
    drawn = []
    for node in rack.nodes.all():
        colour, glyph = _COLOURS.get(node.state, ("", "?"))
        start = None
        if node.position_u is not None:
            start = rack.height_u - (node.position_u + node.height_u - 1) + 1
        drawn.append({"node": node, "start": start, "span": node.height_u, "colour": colour, "glyph": glyph})
    return drawn


@require_GET
@allows("inventory.view")
def nodes(request: HttpRequest) -> HttpResponse:
    chosen = {n: request.GET.get(n, "").strip()[:200].replace("\0", "") for n in ("cluster", "state", "partition", "q")}
    problems: dict[str, list[str]] = {}
    after = request.GET.get("after", "")
    try:
        if after and not after.isdecimal():
            raise InvalidInput({"after": "This is no node to go on from; start at the first page."})
        shown = node_list(NodeFilters(**{k: v or None for k, v in chosen.items()}), after=int(after) if after else None)
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
    }
    return page(request, "inventory/nodes.html", context)


@require_http_methods(["GET", "POST"])
@allows("inventory.view")
def node(request: HttpRequest, pk: int) -> HttpResponse:
    found = node_of(pk)
    names = ("position_u", "height_u", "face", "serial", "comment")
    form = NodeForm(request.POST or None, initial={name: getattr(found, name) for name in names})
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            edit_node(found, by=request.user, **form.cleaned_data)
            toast(request, "Saved.")
            return redirect("web:node", pk)
    cards = list(found.accelerators.filter(retired_at__isnull=True))
    uses = AcceleratorUse.objects.filter(accelerator__in=cards, ended_at__isnull=True)
    context = {
        "nav": "site",
        "node": node_of(pk),
        "cards": cards,
        "uses": {use.accelerator_id: use for use in uses},
        "changes": found.state_changes.order_by("-at", "-id")[:50],
        "form": form,
        "is_stale": found.cluster is not None and is_stale(found.cluster),
    }
    return page(request, "inventory/node.html", context, 422 if form.errors else 200)


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

"""Places, machines, clusters and the catalogue: everybody reads, operators write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import Model, QuerySet
from django.http import HttpResponse
from django.urls import URLPattern, path
from django_filters import rest_framework as filters
from django_filters.filterset import filterset_factory
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api import inventory_shapes as shapes
from apps.api.base import DRY_RUN, ApiViewSet, is_dry_run, refuse_unknown_params
from apps.core.errors import InvalidInput, NotFound
from apps.core.permissions import OPERATOR, site_roles
from apps.inventory.actions import edit_cluster
from apps.inventory.diff import Plan
from apps.inventory.editing import add_thing, edit_thing, retire_thing
from apps.inventory.loading import load_manifest, plan_manifest, read_manifest
from apps.inventory.models import (
    Accelerator,
    AcceleratorModel,
    Cluster,
    Hall,
    Node,
    NodeState,
    NodeStateChange,
    NodeType,
    Partition,
    Rack,
    Region,
    Site,
)
from apps.inventory.queries import NodeFilters, cluster_named, filtered_nodes, node_of
from apps.inventory.wishes import DRAIN, RESUME, ask_node, ask_nodes

# A reference in a body -> what it names, and by what.
_REFERENCES: Mapping[str, tuple[type[Model], str]] = {
    "region": (Region, "pk"),
    "site": (Site, "pk"),
    "hall": (Hall, "pk"),
    "rack": (Rack, "pk"),
    "cluster": (Cluster, "name"),
    "node_type": (NodeType, "name"),
    "accelerator_model": (AcceleratorModel, "name"),
}


def _columns(serializer: type[Any], **paths: str) -> dict[str, str]:
    """Each field of the answer from the column of its name, unless `paths` says another."""
    return {name: paths.get(name, name) for name in serializer().fields}


def _with_rows(values: Mapping[str, Any]) -> dict[str, Any]:
    """A body's references as rows. Raises InvalidInput naming the field."""
    found = dict(values)
    for name in _REFERENCES.keys() & values.keys():
        model, key = _REFERENCES[name]
        if values[name] is not None:
            found[name] = model._default_manager.filter(**{key: values[name]}).first()
            if found[name] is None:
                raise InvalidInput({name: f"There is no {model._meta.verbose_name} {str(values[name])[:60]!r}."})
    return found


class Things(ApiViewSet):
    """What operators edit. A thing that is retired is not listed any more; adding it again brings it back."""

    model: ClassVar[type[Model]]
    body_class: ClassVar[type[Any]]
    keys = ("id",)
    verbs = {
        "list": "inventory.view",
        "retrieve": "inventory.view",
        "create": "inventory.edit",
        "partial_update": "inventory.edit",
        "destroy": "inventory.edit",
    }

    def get_queryset(self) -> QuerySet[Any]:
        rows = self.model._default_manager.all()
        has_end = any(field.name == "retired_at" for field in self.model._meta.fields)
        return rows.filter(retired_at__isnull=True) if has_end else rows

    def retrieve(self, request: Request, pk: int) -> HttpResponse:
        refuse_unknown_params(request, set())
        return self.fresh(self._shown(self._row(pk)))

    def create(self, request: Request) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        values = _with_rows(self.body(self.body_class))
        shown = self.carry_out(lambda: self._shown(add_thing(self.model, values, by=request.user)))
        return Response(shown, status=200 if is_dry_run(request) else 201)

    def partial_update(self, request: Request, pk: int) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        row = self._row(pk)
        body = self.body_class(data=request.data or {}, partial=True)
        body.is_valid(raise_exception=True)
        values = _with_rows(body.validated_data)
        return Response(self.carry_out(lambda: self._shown(edit_thing(row, values, by=request.user))))

    def destroy(self, request: Request, pk: int) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        row = self._row(pk)
        self.carry_out(lambda: retire_thing(row, by=request.user))
        return Response(status=204)

    def _row(self, pk: int) -> Any:
        row = self.get_queryset().filter(pk=pk).first()
        if row is None:
            raise NotFound(f"There is no {self.model._meta.verbose_name} {pk}.")
        return row

    def _shown(self, row: Any) -> dict[str, Any]:
        values = self.model._default_manager.filter(pk=row.pk).values_list(*self.columns.values()).get()
        return dict(zip(self.columns, values, strict=True))

    @classmethod
    def routes(cls, plural: str, name: str) -> list[URLPattern]:
        one = {"get": "retrieve", "patch": "partial_update"} | ({} if cls is NodeTypes else {"delete": "destroy"})
        return [
            path(f"{plural}/", cls.as_view({"get": "list", "post": "create"}), name=plural),
            path(f"{plural}/<int:pk>/", cls.as_view(one), name=name),
        ]


def _documented(body: type[Any], answer: type[Any]) -> Any:
    """What the schema says of the actions that all things share."""
    gone = OpenApiResponse(description="It is retired.")
    return extend_schema_view(
        retrieve=extend_schema(responses=answer),
        create=extend_schema(request=body, responses={201: answer, 200: answer}, parameters=[DRY_RUN]),
        partial_update=extend_schema(request=body, responses=answer, parameters=[DRY_RUN]),
        destroy=extend_schema(responses={204: gone}, parameters=[DRY_RUN]),
    )


@_documented(shapes.RegionIn, shapes.RegionOut)
class Regions(Things):
    model, body_class, serializer_class = Region, shapes.RegionIn, shapes.RegionOut
    queryset, columns = Region.objects.none(), _columns(shapes.RegionOut)


@_documented(shapes.SiteIn, shapes.SiteOut)
class Sites(Things):
    model, body_class, serializer_class = Site, shapes.SiteIn, shapes.SiteOut
    queryset, columns = Site.objects.none(), _columns(shapes.SiteOut, region="region_id")
    filterset_class = filterset_factory(Site, fields=["region"])


@_documented(shapes.HallIn, shapes.HallOut)
class Halls(Things):
    model, body_class, serializer_class = Hall, shapes.HallIn, shapes.HallOut
    queryset, columns = Hall.objects.none(), _columns(shapes.HallOut, site="site_id")
    filterset_class = filterset_factory(Hall, fields=["site"])


@_documented(shapes.RackIn, shapes.RackOut)
class Racks(Things):
    model, body_class, serializer_class = Rack, shapes.RackIn, shapes.RackOut
    queryset, columns = Rack.objects.none(), _columns(shapes.RackOut, hall="hall_id")
    filterset_class = filterset_factory(Rack, fields=["hall"])


@_documented(shapes.NodeTypeIn, shapes.NodeTypeOut)
class NodeTypes(Things):
    model, body_class, serializer_class = NodeType, shapes.NodeTypeIn, shapes.NodeTypeOut
    queryset = NodeType.objects.none()
    columns = _columns(shapes.NodeTypeOut, accelerator_model="accelerator_model__name")


class NodeFilterSet(filters.FilterSet):
    cluster = filters.CharFilter(help_text="A cluster's name.")
    state = filters.ChoiceFilter(choices=NodeState.choices)
    partition = filters.CharFilter(help_text="A partition's name.")
    node_type = filters.CharFilter(help_text="A node type's name.")
    q = filters.CharFilter(help_text="A part of the name, or names as Slurm writes them: gpu[001-128,200].")

    class Meta:
        model = Node
        fields: list[str] = []

    def filter_queryset(self, queryset: QuerySet[Node]) -> QuerySet[Node]:
        given = {name: value or None for name, value in self.form.cleaned_data.items()}
        return filtered_nodes(queryset, NodeFilters(**given))


@_documented(shapes.NodeIn, shapes.NodeOut)
class Nodes(Things):
    model, body_class, serializer_class = Node, shapes.NodeIn, shapes.NodeOut
    queryset, filterset_class = Node.objects.none(), NodeFilterSet
    columns = _columns(
        shapes.NodeOut,
        cluster="cluster__name",
        node_type="node_type__name",
        rack="rack_id",
        wanted_by="wanted_by__username",
    )
    verbs = Things.verbs | {
        "drain": "node.drain",
        "drain_many": "node.drain",
        "resume": "node.resume",
        "resume_many": "node.resume",
    }

    @extend_schema(responses=shapes.NodeFactsOut)
    def retrieve(self, request: Request, pk: int) -> HttpResponse:
        refuse_unknown_params(request, set())
        return self.fresh(self._facts(self._row(pk)))

    @extend_schema(
        operation_id="node_drain", request=shapes.DrainIn, responses=shapes.NodeFactsOut, parameters=[DRY_RUN]
    )
    def drain(self, request: Request, pk: int) -> Response:
        """Start no more jobs on the node; what runs there goes on. `wanted` says so until the scheduler confirms."""
        return self._ask(pk, DRAIN, self.body(shapes.DrainIn))

    @extend_schema(
        operation_id="node_resume", request=shapes.ResumeIn, responses=shapes.NodeFactsOut, parameters=[DRY_RUN]
    )
    def resume(self, request: Request, pk: int) -> Response:
        """Let the node start jobs again. Replaces a drain that is not carried out yet."""
        return self._ask(pk, RESUME, self.body(shapes.ResumeIn))

    @extend_schema(
        operation_id="nodes_drain_many",
        request=shapes.DrainManyIn,
        responses=shapes.AskedNodesOut,
        parameters=[DRY_RUN],
        filters=False,
    )
    def drain_many(self, request: Request) -> Response:
        """Drain each of up to 1,000 nodes that can be; `skipped` says why others are not."""
        return self._ask_many(DRAIN, self.body(shapes.DrainManyIn))

    @extend_schema(
        operation_id="nodes_resume_many",
        request=shapes.ResumeManyIn,
        responses=shapes.AskedNodesOut,
        parameters=[DRY_RUN],
        filters=False,
    )
    def resume_many(self, request: Request) -> Response:
        """Resume each of up to 1,000 nodes that can be; `skipped` says why others are not."""
        return self._ask_many(RESUME, self.body(shapes.ResumeManyIn))

    def _ask(self, pk: int, action: str, body: dict[str, Any]) -> Response:
        refuse_unknown_params(self.request, {"dry_run"})
        row, by = self._row(pk), self.request.user
        return Response(self.carry_out(lambda: self._facts(ask_node(row, action, body["reason"], by=by))))

    def _ask_many(self, action: str, body: dict[str, Any]) -> Response:
        refuse_unknown_params(self.request, {"dry_run"})
        nodes = list(Node.objects.filter(pk__in=body["ids"]))
        skipped = dict.fromkeys(set(body["ids"]) - {node.pk for node in nodes}, "There is no such node.")
        asked: list[int] = []
        if nodes:
            result = self.carry_out(lambda: ask_nodes(nodes, action, body["reason"], by=self.request.user))
            asked, skipped = [node.pk for node in result.asked], skipped | result.skipped
        return Response({"asked": asked, "skipped": [{"id": pk, "why": why} for pk, why in sorted(skipped.items())]})

    def _facts(self, row: Node) -> dict[str, Any]:
        shown = self._shown(row)
        if OPERATOR in site_roles(self.request.user):
            shown["wanted_error"] = Node.objects.values_list("wanted_error", flat=True).get(pk=row.pk)
        return shown


class NodeStateChanges(ApiViewSet):
    """The states a node was in, the latest first."""

    queryset, serializer_class = NodeStateChange.objects.none(), shapes.StateChangeOut
    verbs = {"list": "inventory.view"}
    columns, keys = _columns(shapes.StateChangeOut), ("-id",)

    def get_queryset(self) -> QuerySet[NodeStateChange]:
        return node_of(self.kwargs["pk"]).state_changes.all()


class Accelerators(ApiViewSet):
    """Cards by UUID: the index, and even the node, may change when cards are swapped."""

    queryset, serializer_class = Accelerator.objects.none(), shapes.AcceleratorOut
    verbs = {"list": "inventory.view"}
    columns, keys = _columns(shapes.AcceleratorOut, node="node_id", node_name="node__name"), ("id",)
    filterset_class = filterset_factory(Accelerator, fields=["uuid", "node"])

    def get_queryset(self) -> QuerySet[Accelerator]:
        return Accelerator.objects.filter(retired_at__isnull=True)


class AcceleratorModels(ApiViewSet):
    """Published figures, each with its source."""

    queryset, serializer_class = AcceleratorModel.objects.all(), shapes.AcceleratorModelOut
    verbs = {"list": "inventory.view"}
    columns, keys = _columns(shapes.AcceleratorModelOut), ("id",)
    filterset_class = filterset_factory(AcceleratorModel, fields=["vendor", "name"])


class PartitionFilterSet(filters.FilterSet):
    cluster = filters.CharFilter(field_name="cluster__name", help_text="A cluster's name.")

    class Meta:
        model = Partition
        fields: list[str] = []


class Partitions(ApiViewSet):
    """Queues of the clusters; a limit that is null is no limit."""

    queryset, serializer_class = Partition.objects.none(), shapes.PartitionOut
    verbs = {"list": "cluster.view"}
    columns, keys = _columns(shapes.PartitionOut, cluster="cluster__name"), ("id",)
    filterset_class = PartitionFilterSet

    def get_queryset(self) -> QuerySet[Partition]:
        return Partition.objects.filter(retired_at__isnull=True)


class Clusters(ApiViewSet):
    """Scheduler control planes, and how the last talk with each went."""

    queryset, serializer_class = Cluster.objects.all(), shapes.ClusterOut
    verbs = {"list": "cluster.view", "retrieve": "cluster.view", "partial_update": "cluster.edit"}
    columns, keys = _columns(shapes.ClusterOut, site="site_id"), ("id",)

    @extend_schema(responses=shapes.ClusterOut)
    def retrieve(self, request: Request, name: str) -> HttpResponse:
        refuse_unknown_params(request, set())
        shown = self._shown(cluster_named(name))
        if OPERATOR in site_roles(request.user):
            shown["poll_error"] = cluster_named(name).poll_error
        return self.fresh(shown)

    @extend_schema(request=shapes.ClusterIn, responses=shapes.ClusterOut, parameters=[DRY_RUN])
    def partial_update(self, request: Request, name: str) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        cluster = cluster_named(name)
        values = {"title": cluster.title, "is_enabled": cluster.is_enabled, "site": cluster.site}
        values |= _with_rows(self.body(shapes.ClusterIn))
        return Response(self.carry_out(lambda: self._shown(edit_cluster(cluster, by=request.user, **values))))

    def _shown(self, cluster: Cluster) -> dict[str, Any]:
        values = Cluster.objects.filter(pk=cluster.pk).values_list(*self.columns.values()).get()
        return dict(zip(self.columns, values, strict=True))


class Manifests(ApiViewSet):
    serializer_class = shapes.PlanOut
    verbs = {"create": "inventory.edit"}

    @extend_schema(
        operation_id="manifest_load", request=shapes.ManifestIn, responses=shapes.PlanOut, parameters=[DRY_RUN]
    )
    def create(self, request: Request) -> Response:
        """Bring the inventory to what a site manifest says; the answer is what changed, or with dry_run what would."""
        refuse_unknown_params(request, {"dry_run"})
        manifest = read_manifest(self.body(shapes.ManifestIn)["manifest"].encode(), file="manifest")
        plan = plan_manifest(manifest) if is_dry_run(request) else load_manifest(manifest, by=request.user)
        return Response(_plan(plan))


def _plan(plan: Plan) -> dict[str, Any]:
    changes = [
        {"action": c.verb, "kind": c.kind, "path": list(c.path), "before": dict(c.before), "after": dict(c.after)}
        for c in plan.changes
    ]
    return {"summary": plan.summary(), "changes": changes}


def _list(plural: str, view: type[ApiViewSet]) -> URLPattern:
    return path(f"{plural}/", view.as_view({"get": "list"}), name=plural)


urlpatterns = [
    *Regions.routes("regions", "region"),
    *Sites.routes("sites", "site"),
    *Halls.routes("halls", "hall"),
    *Racks.routes("racks", "rack"),
    *NodeTypes.routes("node-types", "node-type"),
    *Nodes.routes("nodes", "node"),
    path("nodes/drain/", Nodes.as_view({"post": "drain_many"}), name="nodes-drain"),
    path("nodes/resume/", Nodes.as_view({"post": "resume_many"}), name="nodes-resume"),
    path("nodes/<int:pk>/drain/", Nodes.as_view({"post": "drain"}), name="node-drain"),
    path("nodes/<int:pk>/resume/", Nodes.as_view({"post": "resume"}), name="node-resume"),
    path("nodes/<int:pk>/states/", NodeStateChanges.as_view({"get": "list"}), name="node-states"),
    _list("accelerators", Accelerators),
    _list("accelerator-models", AcceleratorModels),
    _list("partitions", Partitions),
    _list("clusters", Clusters),
    path("clusters/<slug:name>/", Clusters.as_view({"get": "retrieve", "patch": "partial_update"}), name="cluster"),
    path("manifest/", Manifests.as_view({"post": "create"}), name="manifest"),
]

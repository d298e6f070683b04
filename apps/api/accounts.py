"""People, projects, hours, tokens, the inbox and the audit trail."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.actions import (
    add_person,
    create_project,
    create_token,
    edit_person,
    edit_project,
    grant_allocation,
    hours_left,
    mark_notices_read,
    remove_member,
    reset_password,
    revoke_token,
    set_member,
)
from apps.accounts.models import Allocation, ApiToken, Membership, Notice, Project, User
from apps.accounts.permissions import project_for, visible_project, visible_projects
from apps.accounts.queries import person_by_id, person_by_name
from apps.api import account_shapes as shapes
from apps.api.base import DRY_RUN, ApiViewSet, is_dry_run, refuse_unknown_params
from apps.core.errors import NotFound
from apps.core.models import AuditEntry


def _columns(serializer: type[Any], **paths: str) -> dict[str, str]:
    return {name: paths.get(name, name) for name in serializer().fields}


def _shown(row: Any, columns: dict[str, str]) -> dict[str, Any]:
    """The columns of one row, through the same paths as in a list."""
    values = type(row)._default_manager.filter(pk=row.pk).values_list(*columns.values()).get()
    return dict(zip(columns, values, strict=True))


class Projects(ApiViewSet):
    """The projects a person may see, by name."""

    verbs = {
        "list": "project.view",
        "retrieve": "project.view",
        "create": "project.create",
        "partial_update": "project.edit",
    }
    columns, keys = _columns(shapes.ProjectOut), ("name",)
    queryset, serializer_class = Project.objects.none(), shapes.ProjectOut

    def get_queryset(self) -> QuerySet[Project]:
        return visible_projects(self.request.user)

    @extend_schema(responses=shapes.ProjectDetailOut)
    def retrieve(self, request: Request, name: str) -> HttpResponse:
        refuse_unknown_params(request, set())
        project = visible_project(request.user, name)
        left = hours_left(project)
        hours = {"gpu_hours_left": left.gpu, "cpu_hours_left": left.cpu}
        return self.fresh(_shown(project, self.columns) | hours)

    @extend_schema(
        request=shapes.ProjectIn, responses={201: shapes.ProjectOut, 200: shapes.ProjectOut}, parameters=[DRY_RUN]
    )
    def create(self, request: Request) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        values = self.body(shapes.ProjectIn)
        lead = values.pop("lead", None)
        values["lead"] = person_by_name(lead, "lead") if lead else None
        shown = self.carry_out(lambda: _shown(create_project(**values, by=request.user), self.columns))
        return Response(shown, status=200 if is_dry_run(request) else 201)

    @extend_schema(request=shapes.ProjectChange, responses=shapes.ProjectOut, parameters=[DRY_RUN])
    def partial_update(self, request: Request, name: str) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        project = project_for(request.user, name, "project.edit")
        now = {"title": project.title, "description": project.description, "is_active": project.is_active}
        values = now | self.body(shapes.ProjectChange)
        return Response(self.carry_out(lambda: _shown(edit_project(project, **values, by=request.user), self.columns)))


class Members(ApiViewSet):
    """Who is in a project, and as what; a person is named by username."""

    verbs = {"list": "project.view", "update": "project.members", "destroy": "project.members"}
    columns, keys = _columns(shapes.MemberOut, person="user__username"), ("user__username",)
    queryset, serializer_class = Membership.objects.none(), shapes.MemberOut

    def get_queryset(self) -> QuerySet[Membership]:
        return Membership.objects.filter(project=visible_project(self.request.user, self.kwargs["name"]))

    @extend_schema(request=shapes.MemberIn, responses=shapes.MemberOut, parameters=[DRY_RUN])
    def update(self, request: Request, name: str, username: str) -> Response:
        """Add the person, or change their role."""
        refuse_unknown_params(request, {"dry_run"})
        project = project_for(request.user, name, "project.members")
        role = self.body(shapes.MemberIn)["role"]
        person = _person(username)
        return Response(
            self.carry_out(lambda: _shown(set_member(project, person, role, by=request.user), self.columns))
        )

    @extend_schema(responses={204: None}, parameters=[DRY_RUN])
    def destroy(self, request: Request, name: str, username: str) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        project = project_for(request.user, name, "project.members")
        person = _person(username)
        self.carry_out(lambda: remove_member(project, person, by=request.user))
        return Response(status=204)


class Allocations(ApiViewSet):
    """The grants of a project, and what is reserved and spent of each."""

    verbs = {"list": "project.view", "create": "allocation.grant"}
    columns, keys = _columns(shapes.AllocationOut), ("id",)
    queryset, serializer_class = Allocation.objects.none(), shapes.AllocationOut

    def get_queryset(self) -> QuerySet[Allocation]:
        return Allocation.objects.filter(project=visible_project(self.request.user, self.kwargs["name"]))

    @extend_schema(
        request=shapes.GrantIn, responses={201: shapes.AllocationOut, 200: shapes.AllocationOut}, parameters=[DRY_RUN]
    )
    def create(self, request: Request, name: str) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        project = project_for(request.user, name, "allocation.grant")
        values = self.body(shapes.GrantIn)
        shown = self.carry_out(lambda: _shown(grant_allocation(project, **values, by=request.user), self.columns))
        return Response(shown, status=200 if is_dry_run(request) else 201)


class PersonFilterSet(filters.FilterSet):
    username = filters.CharFilter(help_text="Exactly this name.")
    is_operator = filters.BooleanFilter()
    is_active = filters.BooleanFilter()

    class Meta:
        model = User
        fields: list[str] = []


class People(ApiViewSet):
    verbs = {
        "list": "person.list",
        "retrieve": "person.list",
        "create": "person.add",
        "partial_update": "person.edit",
        "password": "person.reset_password",
    }
    columns, keys = _columns(shapes.PersonOut), ("username",)
    queryset, serializer_class, filterset_class = User.objects.none(), shapes.PersonOut, PersonFilterSet

    def get_queryset(self) -> QuerySet[User]:
        return User.objects.all()

    def retrieve(self, request: Request, public_id: str) -> HttpResponse:
        refuse_unknown_params(request, set())
        return self.fresh(_shown(person_by_id(public_id), self.columns))

    @extend_schema(
        request=shapes.PersonIn, responses={201: shapes.NewPersonOut, 200: shapes.NewPersonOut}, parameters=[DRY_RUN]
    )
    def create(self, request: Request) -> Response:
        """The answer holds a one-time password, which is kept nowhere."""
        refuse_unknown_params(request, {"dry_run"})
        values = self.body(shapes.PersonIn)

        def add() -> dict[str, Any]:
            person, password = add_person(**values, by=request.user)
            return _shown(person, self.columns) | {"one_time_password": password}

        return _secret(Response(self.carry_out(add), status=200 if is_dry_run(request) else 201))

    @extend_schema(request=shapes.PersonChange, responses=shapes.PersonOut, parameters=[DRY_RUN])
    def partial_update(self, request: Request, public_id: str) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        person = person_by_id(public_id)
        names = shapes.PersonChange().fields
        values = {name: getattr(person, name) for name in names} | self.body(shapes.PersonChange)
        return Response(self.carry_out(lambda: _shown(edit_person(person, **values, by=request.user), self.columns)))

    @extend_schema(request=None, responses=shapes.OneTimePassword, parameters=[DRY_RUN])
    def password(self, request: Request, public_id: str) -> Response:
        """A new one-time password. The old one ends at once."""
        refuse_unknown_params(request, {"dry_run"})
        person = person_by_id(public_id)
        return _secret(Response({"one_time_password": self.carry_out(lambda: reset_password(person, by=request.user))}))


class Me(ApiViewSet):
    verbs = {"retrieve": "token.own"}
    columns = _columns(shapes.PersonOut)
    queryset, serializer_class = User.objects.none(), shapes.PersonOut

    def retrieve(self, request: Request) -> HttpResponse:
        """Who the token or the session belongs to."""
        refuse_unknown_params(request, set())
        return self.fresh(_shown(request.user, self.columns))


class Tokens(ApiViewSet):
    """One's own tokens."""

    verbs = {"list": "token.own", "create": "token.own", "destroy": "token.own"}
    columns = _columns(shapes.TokenOut, key="token_key", created_at="created", expires_at="expiry")
    keys = ("-created", "-pk")
    queryset, serializer_class = ApiToken.objects.none(), shapes.TokenOut

    def get_queryset(self) -> QuerySet[ApiToken]:
        return ApiToken.objects.filter(user=self.request.user)

    @extend_schema(
        request=shapes.TokenIn, responses={201: shapes.NewTokenOut, 200: shapes.NewTokenOut}, parameters=[DRY_RUN]
    )
    def create(self, request: Request) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        values = self.body(shapes.TokenIn)

        def make() -> dict[str, Any]:
            token, text = create_token(request.user, **values)
            return _shown(token, self.columns) | {"token": text}

        return _secret(Response(self.carry_out(make), status=200 if is_dry_run(request) else 201))

    @extend_schema(responses={204: None}, parameters=[DRY_RUN])
    def destroy(self, request: Request, key: str) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        self.carry_out(lambda: revoke_token(request.user, key))
        return Response(status=204)


class Notices(ApiViewSet):
    """One's own inbox, newest first."""

    verbs = {"list": "token.own", "read": "token.own"}
    columns = _columns(shapes.NoticeOut)
    queryset, serializer_class = Notice.objects.none(), shapes.NoticeOut

    def get_queryset(self) -> QuerySet[Notice]:
        return Notice.objects.filter(user=self.request.user)

    @extend_schema(request=shapes.NoticesRead, responses=shapes.ReadOut, parameters=[DRY_RUN])
    def read(self, request: Request) -> Response:
        refuse_unknown_params(request, {"dry_run"})
        ids = self.body(shapes.NoticesRead)["ids"]
        return Response({"read": self.carry_out(lambda: mark_notices_read(request.user, ids))})


class AuditFilterSet(filters.FilterSet):
    person = filters.CharFilter(field_name="actor_name", help_text="A username.")
    verb = filters.CharFilter(help_text="For example job.cancel.")
    target = filters.CharFilter(field_name="target_id", help_text="The public id of what it was done to.")
    since = filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte")
    until = filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt")

    class Meta:
        model = AuditEntry
        fields: list[str] = []


class Audit(ApiViewSet):
    """Who did what to what, newest first. Rows are never changed."""

    verbs = {"list": "audit.view"}
    columns = _columns(shapes.AuditOut, person="actor_name")
    queryset, serializer_class, filterset_class = AuditEntry.objects.none(), shapes.AuditOut, AuditFilterSet

    def get_queryset(self) -> QuerySet[AuditEntry]:
        return AuditEntry.objects.all()


def _person(username: str) -> User:
    person = User.objects.filter(username=username).first()
    if person is None:
        raise NotFound(f"There is nobody named {username[:60]}.")
    return person


def _secret(response: Response) -> Response:
    response["Cache-Control"] = "no-store"
    return response


urlpatterns = [
    path("projects/", Projects.as_view({"get": "list", "post": "create"}), name="projects"),
    path("projects/<slug:name>/", Projects.as_view({"get": "retrieve", "patch": "partial_update"}), name="project"),
    path("projects/<slug:name>/members/", Members.as_view({"get": "list"}), name="members"),
    path(
        "projects/<slug:name>/members/<str:username>/",
        Members.as_view({"put": "update", "delete": "destroy"}),
        name="member",
    ),
    path(
        "projects/<slug:name>/allocations/",
        Allocations.as_view({"get": "list", "post": "create"}),
        name="allocations",
    ),
    path("people/", People.as_view({"get": "list", "post": "create"}), name="people"),
    path("people/<str:public_id>/", People.as_view({"get": "retrieve", "patch": "partial_update"}), name="person"),
    path("people/<str:public_id>/password/", People.as_view({"post": "password"}), name="person-password"),
    path("me/", Me.as_view({"get": "retrieve"}), name="me"),
    path("tokens/", Tokens.as_view({"get": "list", "post": "create"}), name="tokens"),
    path("tokens/<str:key>/", Tokens.as_view({"delete": "destroy"}), name="token"),
    path("notices/", Notices.as_view({"get": "list"}), name="notices"),
    path("notices/read/", Notices.as_view({"post": "read"}), name="notices-read"),
    path("audit/", Audit.as_view({"get": "list"}), name="audit"),
]

"""Projects: the list, and one with its members and hours."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.accounts.actions import create_project, edit_project, grant_allocation, remove_member, set_member
from apps.accounts.permissions import project_for, visible_projects
from apps.accounts.queries import person_by_id, person_by_name, project_detail
from apps.core.errors import Conflict
from apps.jobs.queries import JobFilters, job_list
from apps.web.forms import EditProjectForm, GrantForm, MemberForm, ProjectForm
from apps.web.render import allows, form_errors, page, toast

MAX_SHOWN = 500


@require_GET
@allows("cluster.view")
def projects(request: HttpRequest) -> HttpResponse:
    q = request.GET.get("q", "").strip()[:100].replace("\0", "")
    rows = visible_projects(request.user)
    if q:
        rows = rows.filter(name__icontains=q)
    context = {"nav": "projects", "projects": rows.prefetch_related("allocations")[:MAX_SHOWN], "q": q}
    return page(request, "projects/list.html", context)


@require_http_methods(["GET", "POST"])
@allows("project.create")
def new(request: HttpRequest) -> HttpResponse:
    form = ProjectForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            data = dict(form.cleaned_data)
            lead = data.pop("lead")
            project = create_project(lead=person_by_name(lead, "lead") if lead else None, by=request.user, **data)
            toast(request, f"Project {project} is made.")
            return redirect("web:project", project.name)
    return page(request, "projects/new.html", {"nav": "projects", "form": form})


@require_GET
@allows("project.view")
def project(request: HttpRequest, name: str) -> HttpResponse:
    return _show(request, name)


def _show(request: HttpRequest, name: str, status: int = 200, **forms: Any) -> HttpResponse:
    detail = project_detail(request.user, name)
    found = detail.project
    initial = {"title": found.title, "description": found.description, "is_active": found.is_active}
    context = {
        "nav": "projects",
        "detail": detail,
        "project": found,
        "page": job_list(request.user, JobFilters(project=found.name), size=10),
        "member_form": MemberForm(),
        "grant_form": GrantForm(),
        "edit_form": EditProjectForm(initial=initial),
        **forms,
    }
    return page(request, "projects/detail.html", context, status)


@require_POST
@allows("project.edit")
def edit(request: HttpRequest, name: str) -> HttpResponse:
    found, form = project_for(request.user, name, "project.edit"), EditProjectForm(request.POST)
    if form.is_valid():
        with form_errors(form):
            edit_project(found, by=request.user, **form.cleaned_data)
            toast(request, "Saved.")
            return redirect("web:project", name)
    return _show(request, name, 422, edit_form=form)


@require_POST
@allows("project.members")
def member(request: HttpRequest, name: str) -> HttpResponse:
    found, form = project_for(request.user, name, "project.members"), MemberForm(request.POST)
    if form.is_valid():
        with form_errors(form):
            person = person_by_name(form.cleaned_data["person"], "person")
            set_member(found, person, form.cleaned_data["role"], by=request.user)
            toast(request, f"{person.username} is {form.cleaned_data['role']} of {found}.")
            return redirect("web:project", name)
    return _show(request, name, 422, member_form=form)


@require_POST
@allows("project.members")
def member_remove(request: HttpRequest, name: str, public_id: str) -> HttpResponse:
    found = project_for(request.user, name, "project.members")
    try:
        person = person_by_id(public_id)
        remove_member(found, person, by=request.user)
        toast(request, f"{person.username} is no member of {found} any more. Jobs of theirs go on.")
    except Conflict as error:  # shown on the page it was pressed on
        toast(request, error.message, is_error=True)
    return redirect("web:project", name)


@require_POST
@allows("allocation.grant")
def grant(request: HttpRequest, name: str) -> HttpResponse:
    found, form = project_for(request.user, name, "allocation.grant"), GrantForm(request.POST)
    if form.is_valid():
        with form_errors(form, {"ends_at": "ends_on"}):
            data = form.cleaned_data
            # Through the whole last day, in UTC.
            ends_on = data["ends_on"]
            ends_at = datetime.combine(ends_on + timedelta(days=1), time(), UTC) if ends_on else None
            grant_allocation(
                found, unit=data["unit"], hours=data["hours"], ends_at=ends_at, note=data["note"], by=request.user
            )
            toast(request, f"{data['hours']:,} hours are granted.")
            return redirect("web:project", name)
    return _show(request, name, 422, grant_form=form)


urlpatterns = [
    path("projects/", projects, name="projects"),
    path("projects/new/", new, name="project-new"),
    path("projects/<slug:name>/", project, name="project"),
    path("projects/<slug:name>/edit/", edit, name="project-edit"),
    path("projects/<slug:name>/members/", member, name="project-member"),
    path("projects/<slug:name>/members/<str:public_id>/remove/", member_remove, name="project-member-remove"),
    path("projects/<slug:name>/grant/", grant, name="project-grant"),
]

"""People and the audit trail, for operators."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.accounts.actions import add_person, edit_person, reset_password, set_unix_identity
from apps.accounts.models import Membership
from apps.accounts.queries import audit_entries, person_by_id
from apps.accounts.queries import people as people_page
from apps.web.forms import EditPersonForm, IdentityForm, PersonForm
from apps.web.render import allows, form_errors, page, toast


@require_GET
@allows("person.list")
def people(request: HttpRequest) -> HttpResponse:
    q = request.GET.get("q", "").strip()[:100].replace("\0", "")
    rows, following = people_page(q, request.GET.get("after", "")[:150].replace("\0", ""))
    return page(request, "people/list.html", {"nav": "people", "people": rows, "next": following, "q": q})


@require_http_methods(["GET", "POST"])
@allows("person.add")
def new(request: HttpRequest) -> HttpResponse:
    """The one-time password is on the answer to the form and nowhere else."""
    form, added = PersonForm(request.POST or None), None
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            added = add_person(by=request.user, **form.cleaned_data)
            form = PersonForm()
    return _secret(page(request, "people/new.html", {"nav": "people", "form": form, "added": added}))


@require_http_methods(["GET", "POST"])
@allows("person.edit")
def person(request: HttpRequest, public_id: str) -> HttpResponse:
    found = person_by_id(public_id)
    names = ("first_name", "last_name", "email", "is_operator", "is_active")
    form = EditPersonForm(request.POST or None, initial={name: getattr(found, name) for name in names})
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            edit_person(found, by=request.user, **form.cleaned_data)
            toast(request, "Saved.")
            return redirect("web:person", public_id)
    return _show(request, public_id, form=form)


@require_POST
@allows("person.edit")
def identity(request: HttpRequest, public_id: str) -> HttpResponse:
    """As whom the person's jobs run on a cluster; an empty name takes it away."""
    found, form = person_by_id(public_id), IdentityForm(request.POST)
    if form.is_valid():
        with form_errors(form):
            set_unix_identity(found, by=request.user, **form.cleaned_data)
            toast(request, "Saved.")
            return redirect("web:person", public_id)
    return _show(request, public_id, identity_form=form)


@require_POST
@allows("person.reset_password")
def password(request: HttpRequest, public_id: str) -> HttpResponse:
    return _secret(_show(request, public_id, new_password=reset_password(person_by_id(public_id), by=request.user)))


def _show(request: HttpRequest, public_id: str, **context: object) -> HttpResponse:
    found = person_by_id(public_id)
    identities = found.unix_identities.select_related("cluster").order_by("cluster__name")
    memberships = Membership.objects.filter(user=found).select_related("project").order_by("project__name")
    return page(
        request,
        "people/detail.html",
        {
            "nav": "people",
            "person": found,
            "memberships": memberships,
            "identities": identities,
            "identity_form": IdentityForm(),
            **context,
        },
    )


def _secret(response: HttpResponse) -> HttpResponse:
    response["Cache-Control"] = "no-store"
    return response


@require_GET
@allows("audit.view")
def audit(request: HttpRequest) -> HttpResponse:
    names = ("person", "verb", "target")
    context = {
        "nav": "audit",
        "page": audit_entries(request.GET.dict()),
        "chosen": {n: request.GET.get(n, "") for n in names},
    }
    return page(request, "people/audit.html", context)


urlpatterns = [
    path("people/", people, name="people"),
    path("people/new/", new, name="person-new"),
    path("people/<str:public_id>/", person, name="person"),
    path("people/<str:public_id>/identity/", identity, name="person-identity"),
    path("people/<str:public_id>/password/", password, name="person-password"),
    path("audit/", audit, name="audit"),
]

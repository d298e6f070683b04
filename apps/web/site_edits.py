"""What operators change of the site: forms for places, node types and nodes, the manifest, a table of nodes."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path, reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods, require_POST

from apps.core.errors import Conflict, NotFound
from apps.inventory.editing import FIELDS, add_thing, edit_thing, retire_thing
from apps.inventory.importing import import_nodes
from apps.inventory.loading import load_manifest, plan_manifest, read_manifest
from apps.inventory.marked_yaml import MAX_BYTES as MAX_MANIFEST_BYTES
from apps.inventory.models import Hall, Node, NodeType, Rack, Region, Site
from apps.inventory.nodes_csv import MAX_BYTES as MAX_TABLE_BYTES
from apps.inventory.queries import history_of
from apps.web.render import allows, form_errors, page, toast

# The word in the URL -> what it makes, and the field that holds its parent.
KINDS: dict[str, tuple[type[Model], str]] = {
    "region": (Region, ""),
    "site": (Site, "region"),
    "hall": (Hall, "site"),
    "rack": (Rack, "hall"),
    "node": (Node, "rack"),
    "node-type": (NodeType, ""),
}
# A node that a scheduler lists is known by these: renaming it would make two of it.
_FIXED = {Node: ("cluster", "name")}


class ManifestForm(forms.Form):
    manifest = forms.FileField(label=_("Site manifest (YAML)"), required=False)
    text = forms.CharField(widget=forms.HiddenInput, required=False, strip=False)
    file_name = forms.CharField(widget=forms.HiddenInput, required=False, max_length=200)

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        upload = values.get("manifest")
        if upload is not None:
            # One byte more than is read, so that a file that is too long is told apart from one that just fits.
            values["data"], values["file_name"] = upload.read(MAX_MANIFEST_BYTES + 1), upload.name[:200]
        elif values.get("text"):
            values["data"] = values["text"].encode()
        elif "manifest" not in self.errors:
            self.add_error("manifest", _("Choose a file."))
        return values


class TableForm(forms.Form):
    file = forms.FileField(
        label=_("Table of nodes (CSV)"),
        help_text=_("The first line names the columns: name, and any of cluster, rack, position, u_height, serial ..."),
    )
    hall = forms.ModelChoiceField(
        Hall.objects.filter(retired_at__isnull=True).select_related("site"),
        required=False,
        help_text=_("Where the racks stand; racks that are missing there are made."),
    )


@require_http_methods(["GET", "POST"])
@allows("inventory.edit")
def add(request: HttpRequest, kind: str) -> HttpResponse:
    model, parent = _kind(kind)
    initial = {parent: request.GET.get("parent", "")[:20]} if parent else {}
    form = _form(model, FIELDS[model], request.POST or None, initial)
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            row = add_thing(model, form.cleaned_data, by=request.user)
            toast(request, f"{row} is added.")
            return redirect(_url_of(row))
    context = {"nav": "site", "form": form, "kind": kind, "noun": model._meta.verbose_name, "back": reverse("web:site")}
    return page(request, "inventory/edit.html", context, 422 if form.errors else 200)


@require_http_methods(["GET", "POST"])
@allows("inventory.edit")
def edit(request: HttpRequest, kind: str, pk: int) -> HttpResponse:
    model, _parent = _kind(kind)
    row = _row(model, pk)
    names = [name for name in FIELDS[model] if name not in _FIXED.get(model, ())]
    initial = {name: getattr(row, f"{name}_id", getattr(row, name)) for name in names}
    form = _form(model, names, request.POST or None, initial)
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            row = edit_thing(row, form.cleaned_data, by=request.user)
            toast(request, f"{row} is saved.")
            return redirect(_url_of(row))
    context = {
        "nav": "site",
        "form": form,
        "kind": kind,
        "row": row,
        "noun": model._meta.verbose_name,
        "back": _url_of(row),
        "history": history_of(row),
    }
    return page(request, "inventory/edit.html", context, 422 if form.errors else 200)


@require_POST
@allows("inventory.edit")
def retire(request: HttpRequest, kind: str, pk: int) -> HttpResponse:
    model, _parent = _kind(kind)
    row = _row(model, pk)
    back = _url_of(row)
    try:
        retire_thing(row, by=request.user)
    except Conflict as error:  # back to the page that shows what is still in it
        toast(request, error.message, is_error=True)
        return redirect(back)
    toast(request, f"{row} is retired.")
    return redirect("web:site")


@require_http_methods(["GET", "POST"])
@allows("inventory.edit")
def manifest(request: HttpRequest) -> HttpResponse:
    """Upload, look at the diff, apply: the text comes back with the second press, so nothing is kept in between."""
    form = ManifestForm(request.POST, request.FILES) if request.method == "POST" else ManifestForm()
    context: dict[str, Any] = {"nav": "site", "tab": "manifest", "form": form}
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            data, name = form.cleaned_data["data"], form.cleaned_data["file_name"] or "manifest"
            parsed = read_manifest(data, file=name)
            if "apply" in request.POST:
                toast(request, f"Done: {load_manifest(parsed, by=request.user).summary()}.")
                return redirect("web:site")
            context |= {"plan": plan_manifest(parsed), "text": data.decode("utf-8-sig"), "file_name": name}
    return page(request, "inventory/manifest.html", context, 422 if form.errors else 200)


@require_http_methods(["GET", "POST"])
@allows("inventory.edit")
def table(request: HttpRequest) -> HttpResponse:
    form = TableForm(request.POST, request.FILES) if request.method == "POST" else TableForm()
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            data = form.cleaned_data["file"].read(MAX_TABLE_BYTES + 1)
            done = import_nodes(data, hall=form.cleaned_data["hall"], by=request.user)
            toast(request, f"{done.summary().capitalize()}.")
            return redirect("web:nodes")
    context = {"nav": "site", "tab": "import", "form": form}
    return page(request, "inventory/import.html", context, 422 if form.errors else 200)


def _kind(kind: str) -> tuple[type[Model], str]:
    if kind not in KINDS:
        raise NotFound(f"There is nothing of the kind {kind!r} to edit.")
    return KINDS[kind]


def _row(model: type[Model], pk: int) -> Any:
    row = model._default_manager.filter(pk=pk).first()
    if row is None:
        raise NotFound(f"There is no such {model._meta.verbose_name}.")
    return row


def _form(model: type[Model], names: Any, data: Any, initial: dict[str, Any]) -> forms.Form:
    fields = forms.fields_for_model(model, fields=list(names))
    for field in fields.values():
        if not isinstance(field, forms.ModelChoiceField):
            continue
        others: Any = field.queryset.model
        if any(one.name == "retired_at" for one in others._meta.get_fields()):
            field.queryset = field.queryset.filter(retired_at__isnull=True)
        if others is Rack:
            field.queryset = field.queryset.select_related("hall__site")
            field.label_from_instance = lambda rack: f"{rack.hall} / {rack}"  # type: ignore[method-assign]
        elif others is Hall:
            field.queryset = field.queryset.select_related("site")
    made: forms.Form = type("ThingForm", (forms.Form,), fields)(data, initial=initial)
    return made


def _url_of(row: Any) -> str:
    if isinstance(row, Node):
        return reverse("web:node", args=[row.pk])
    if isinstance(row, NodeType):
        return reverse("web:catalogue")
    if isinstance(row, Hall | Rack):
        return reverse("web:hall", args=[row.pk if isinstance(row, Hall) else row.hall_id])
    return reverse("web:site")


urlpatterns = [
    path("site/manifest/", manifest, name="manifest"),
    path("site/import/", table, name="nodes-import"),
    path("site/add/<slug:kind>/", add, name="site-add"),
    path("site/edit/<slug:kind>/<int:pk>/", edit, name="site-edit"),
    path("site/retire/<slug:kind>/<int:pk>/", retire, name="site-retire"),
]

"""Draining and resuming nodes: a small form that says what will happen, for one node or those chosen in the list."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path, reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from apps.inventory.models import Node
from apps.inventory.queries import node_of
from apps.inventory.wishes import DRAIN, MAX_REASON, RESUME, ask_nodes
from apps.jobs.node_control import jobs_on
from apps.web.render import allows, form_errors, page, toast

SHOWN_NAMES = 20
SHOWN_REFUSALS = 5
_DOING = {DRAIN: "drained", RESUME: "resumed"}


class ReasonForm(forms.Form):
    reason = forms.CharField(label=_("Why"), max_length=MAX_REASON, help_text=_("It stands beside the node."))

    def __init__(self, *args: Any, action: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].required = action == DRAIN
        self.fields["reason"].widget.attrs |= {"autocomplete": "off", "autofocus": True}


@require_http_methods(["GET", "POST"])
@allows("node.drain")
def drain(request: HttpRequest, pk: int | None = None) -> HttpResponse:
    return _ask(request, DRAIN, pk)


@require_http_methods(["GET", "POST"])
@allows("node.resume")
def resume(request: HttpRequest, pk: int | None = None) -> HttpResponse:
    return _ask(request, RESUME, pk)


def _ask(request: HttpRequest, action: str, pk: int | None) -> HttpResponse:
    nodes = [node_of(pk)] if pk is not None else _chosen(request)
    back = reverse("web:nodes") if pk is None else reverse("web:node", args=[pk])
    if not nodes:
        toast(request, "No node was chosen.", is_error=True)
        return redirect(back)
    form = ReasonForm(request.POST if request.method == "POST" else None, action=action)
    if form.is_valid():
        with form_errors(form):
            result = ask_nodes(nodes, action, form.cleaned_data["reason"], by=request.user)
            if result.asked:
                what = str(result.asked[0]) if len(result.asked) == 1 else f"{len(result.asked):,} nodes"
                toast(request, f"{what} will be {_DOING[action]}: the scheduler is told.")
            for why in list(result.skipped.values())[:SHOWN_REFUSALS]:
                toast(request, why, is_error=True)
            return redirect(back)
    context = {
        "nav": "site",
        "form": form,
        "action": action,
        "nodes": nodes,
        "names": [node.name for node in nodes[:SHOWN_NAMES]],
        "more": max(0, len(nodes) - SHOWN_NAMES),
        "job_count": jobs_on(nodes),
        "is_one": pk is not None,
        "back": back,
    }
    template = "inventory/_ask.html" if request.headers.get("HX-Request") else "inventory/ask.html"
    return page(request, template, context, 422 if form.errors else 200)


def _chosen(request: HttpRequest) -> list[Node]:
    given = request.POST if request.method == "POST" else request.GET
    ids = {int(text) for text in given.getlist("id") if text.isascii() and text.isdigit() and len(text) < 19}
    return list(Node.objects.filter(pk__in=ids).order_by("name", "pk"))


urlpatterns = [
    path("nodes/drain/", drain, name="nodes-drain"),
    path("nodes/resume/", resume, name="nodes-resume"),
    path("nodes/<int:pk>/drain/", drain, name="node-drain"),
    path("nodes/<int:pk>/resume/", resume, name="node-resume"),
]

"""The first page, and search."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path
from django.views.decorators.http import require_GET

from apps.jobs.overview import overview as overview_of
from apps.jobs.search import search as search_for
from apps.web.render import allows, fragment, page


@require_GET
@allows("cluster.view")
def overview(request: HttpRequest) -> HttpResponse:
    context = {"nav": "overview", "overview": overview_of(request.user)}
    if request.headers.get("HX-Request"):
        return fragment(request, "overview/_body.html", context)
    return page(request, "overview/page.html", context)


@require_GET
@allows("cluster.view")
def search(request: HttpRequest) -> HttpResponse:
    text = request.GET.get("q", "").strip()[:200].replace("\0", "")
    hits = search_for(request.user, text) if text else []
    if len(hits) == 1 and hits[0].is_exact:
        return redirect(hits[0].link)
    return page(request, "overview/search.html", {"search_text": text, "hits": hits})


urlpatterns = [path("", overview, name="overview"), path("search/", search, name="search")]

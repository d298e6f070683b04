"""The schema, the page that shows it, and the answer where nothing is."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve
from django.views import View
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.permissions import IsAuthenticated

from apps.api.problems import problem


class Schema(SpectacularAPIView):
    """The OpenAPI document, as YAML or JSON. It says what there is, so only who may sign in may read it."""

    permission_classes = [IsAuthenticated]


class Docs(SpectacularSwaggerSplitView):
    """Swagger UI from our own static files. Its script is fetched by itself: the page has none inside."""

    permission_classes = [IsAuthenticated]
    url_name = "api:schema"


class NothingHere(View):
    """404 as a problem, with a hint where only the slash at the end is missing."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        detail = "There is nothing here; /api/docs/ lists what there is."
        if not request.path.endswith("/") and _leads_somewhere(f"{request.path_info}/"):
            detail = f"There is nothing here; did you mean {request.path}/ with a slash at the end?"
        return problem(404, "not-found", "Not found", detail, path=request.path)


def _leads_somewhere(path: str) -> bool:
    try:
        return resolve(path).url_name != "nothing-here"
    except Resolver404:
        return False

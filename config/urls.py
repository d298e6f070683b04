"""Every URL: the pages, the API, and the health check."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import include, path


def healthz(request: HttpRequest) -> HttpResponse:
    """Says that this process answers; what ails the rest is on the pages."""
    return HttpResponse("ok\n", content_type="text/plain")


urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("api/", include("apps.api.urls")),
    path("", include("apps.web.urls")),
]

handler400 = "apps.web.errors.bad_request"
handler403 = "apps.web.errors.forbidden"
handler404 = "apps.web.errors.not_found"
handler500 = "apps.web.errors.server_error"

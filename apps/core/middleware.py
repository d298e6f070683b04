"""Remembers, for the audit rows of a request, through which face and from which address it came."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from apps.core.audit import audit_origin


class AuditOrigin:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        via = "api" if request.path.startswith("/api/") else "web"
        with audit_origin(via, request.META.get("REMOTE_ADDR") or None):
            return self.get_response(request)

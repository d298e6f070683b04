"""Deny by default: a page that does not say it is open wants a signed-in person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode

# Besides these, only the API (which has its own rule) and static files answer a stranger.
OPEN_VIEWS = {"web:sign-in", "healthz"}


class SignInRequired:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any
    ) -> HttpResponse | None:
        match = request.resolver_match
        if match is None or match.view_name in OPEN_VIEWS or request.path.startswith("/api/"):
            return None
        if not request.user.is_authenticated:
            return redirect(f"{reverse('web:sign-in')}?{urlencode({'next': request.get_full_path()})}")
        if request.user.must_change_password and match.view_name not in {"web:password", "web:sign-out"}:
            return redirect("web:password")
        return None

"""Pages for what Django itself refuses."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from apps.core.errors import DomainError, NotAllowed, NotFound
from apps.web.render import problem_page


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return problem_page(request, NotFound("There is no such page here, or you may not see it."))


def forbidden(request: HttpRequest, exception: Exception | None = None, reason: str = "") -> HttpResponse:
    return problem_page(
        request, NotAllowed("This may not be done by you, or the page was too old: go back and reload.")
    )


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return problem_page(request, DomainError("The request could not be understood."))


def server_error(request: HttpRequest) -> HttpResponse:
    """Without the request's context, whose user is in the database: that may be what failed."""
    return HttpResponse(render_to_string("errors/500.html"), status=500)

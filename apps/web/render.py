"""What every page needs: rights, the frame's facts, errors for people, fragments that cost nothing unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import orjson
from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from apps.accounts.models import Notice
from apps.core.errors import DomainError, InvalidInput, NotAllowed, NotFound, Unavailable
from apps.core.permissions import ALLOWED, OPERATOR, PERSON, is_allowed, require, site_roles

View = Callable[..., HttpResponse]
_STATUS = {"not-found": 404, "not-allowed": 403, "conflict": 409, "unavailable": 503}

# Name of the section, its first page, its key after "g", and the verb it takes to see it.
NAVIGATION = (
    ("overview", _("Overview"), "web:overview", "o", "cluster.view"),
    ("jobs", _("Jobs"), "web:jobs", "j", "cluster.view"),
    ("submit", _("Submit"), "web:submit", "n", "cluster.view"),
    ("projects", _("Projects"), "web:projects", "p", "cluster.view"),
    ("clusters", _("Clusters"), "web:clusters", "c", "cluster.view"),
    ("site", _("Site"), "web:site", "s", "inventory.view"),
    ("people", _("People"), "web:people", "e", "person.list"),
    ("audit", _("Audit"), "web:audit", "a", "audit.view"),
)


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context processor: what base.html shows around each page."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {"navigation": []}
    roles = site_roles(user)
    return {
        "navigation": [
            {"name": name, "title": title, "url": reverse(url), "key": key}
            for name, title, url, key, verb in NAVIGATION
            if is_allowed(verb, roles)
        ],
        "unread_count": lambda: Notice.objects.filter(user=user, read_at__isnull=True).count(),
    }


def allows(verb: str) -> Callable[[View], View]:
    """Declare what a page needs. Verbs of the site are checked here, those of a project by what the view calls."""

    def wrap(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            try:
                _refuse_nul(request, kwargs)
                if ALLOWED[verb] <= {PERSON, OPERATOR}:
                    require(verb, site_roles(request.user))
                return view(request, *args, **kwargs)
            except DomainError as error:
                return problem_page(request, error)

        checked.verb = verb  # type: ignore[attr-defined]
        return checked

    return wrap


def _refuse_nul(request: HttpRequest, kwargs: Mapping[str, Any]) -> None:
    """The database knows no text with a NUL in it. Fields of forms look for themselves and name their field."""
    if any("\0" in str(value) for value in kwargs.values()):
        raise NotFound("There is no such page here, or you may not see it.")
    for name, values in request.GET.lists():
        if "\0" in name or any("\0" in value for value in values):
            raise InvalidInput({name.replace("\0", "?"): "This holds a NUL character, so it is not text."})


def page(request: HttpRequest, template: str, context: Mapping[str, Any], status: int = 200) -> HttpResponse:
    return render(request, template, dict(context), status=status)


def problem_page(request: HttpRequest, error: DomainError) -> HttpResponse:
    """A page that says what failed; for a fragment, the sentence alone."""
    status = _STATUS.get(error.kind, 400)
    template = "errors/_problem.html" if request.headers.get("HX-Request") else "errors/problem.html"
    return page(request, template, {"error": error, "status": status}, status)


@contextmanager
def form_errors(form: forms.Form, fields: Mapping[str, str] | None = None) -> Iterator[None]:
    """What the domain refuses stands beside its field; the form keeps what was typed.

    `fields` maps names of the domain to names of the form where they differ.
    """
    try:
        yield
    except InvalidInput as error:
        for name, texts in error.fields.items():
            target = (fields or {}).get(name, name)
            for text in texts:
                form.add_error(target if target in form.fields else None, text)
    except (NotFound, NotAllowed, Unavailable):
        raise
    except DomainError as error:
        form.add_error(None, error.message)


def fragment(request: HttpRequest, template: str, context: Mapping[str, Any]) -> HttpResponse:
    """A piece of a page that is asked for again and again: unchanged, it is not sent again."""
    return with_etag(request, render(request, template, dict(context)))


def figure_response(request: HttpRequest, figure: Mapping[str, Any], *, is_final: bool) -> HttpResponse:
    """A Plotly figure. `is_final` tells the page that it will not change any more."""
    response = HttpResponse(orjson.dumps(figure), content_type="application/json")
    if is_final:
        response["X-Final"] = "1"
    return with_etag(request, response)


def with_etag(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    etag = f'"{hashlib.sha256(response.content).hexdigest()[:24]}"'
    if request.headers.get("If-None-Match") == etag:
        unchanged = HttpResponse(status=304)
        unchanged["ETag"] = etag
        if "X-Final" in response:
            unchanged["X-Final"] = response["X-Final"]
        return unchanged
    response["ETag"] = etag
    response["Cache-Control"] = "no-cache, private"
    return response


def toast(request: HttpRequest, text: str, *, is_error: bool = False) -> None:
    """A line on the next page."""
    (messages.error if is_error else messages.success)(request, text)

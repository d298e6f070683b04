"""RFC 9457 problems: the one place where what went wrong becomes an HTTP answer.

`type` is `urn:switchyard:problem:<kind>` and never changes; `detail` is for people. A problem with the input has
`errors`, one `{"field", "message"}` for each thing to mend; fields inside fields are dotted (`jobs.3.name`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpResponse, UnreadablePostError
from django.utils.translation import gettext as _
from rest_framework import exceptions

from apps.core.errors import DomainError, InvalidInput

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5

# An allocation that is used up is a state somebody can change, after which the same request succeeds: 409, not 422.
STATUS: Mapping[str, int] = {
    "invalid-input": 400,
    "not-allowed": 403,
    "not-found": 404,
    "conflict": 409,
    "over-limit": 409,
    "unavailable": 503,
}
_KIND_OF_STATUS = {
    400: "invalid-input",
    401: "not-signed-in",
    403: "not-allowed",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-large",
    415: "unsupported-media-type",
    429: "throttled",
}


class TooLarge(exceptions.APIException):
    """The body is larger than this server reads."""

    status_code = 413
    default_code = "too-large"


def problem(
    status: int,
    kind: str,
    title: str,
    detail: str,
    *,
    path: str = "",
    errors: list[dict[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpResponse:
    """One application/problem+json answer."""
    body: dict[str, Any] = {
        "type": f"urn:switchyard:problem:{kind}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": path,
    }
    if errors is not None:
        body["errors"] = errors
    return HttpResponse(
        orjson.dumps(_encodable(body)), status=status, content_type="application/problem+json", headers=headers
    )


def problem_response(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """DRF's exception handler: whatever a view raised, as a problem."""
    request = context.get("request")
    path = request.path if request is not None else ""
    if isinstance(error, DomainError):
        return _domain_problem(error, path)
    if isinstance(error, Http404):
        return problem(404, "not-found", "Not found", _("There is nothing here."), path=path)
    if isinstance(error, PermissionDenied):
        return problem(403, "not-allowed", "Not allowed", str(error) or _("You may not do this."), path=path)
    if isinstance(error, exceptions.APIException):
        return _framework_problem(error, path)
    if isinstance(error, SuspiciousOperation | UnreadablePostError):
        return problem(400, "invalid-input", "Invalid input", _("The request could not be read."), path=path)
    if isinstance(error, OperationalError | InterfaceError):
        log.warning("the database did not answer %s: %s", path, error)
        return problem(
            503,
            "unavailable",
            "Temporarily unavailable",
            _("The database does not answer. Nothing was changed; try again in a few seconds."),
            path=path,
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    log.exception("unexpected error at %s", path, exc_info=error)
    return problem(
        500, "error", "Something went wrong", _("This is a fault of ours; the server's log has the details."), path=path
    )


def _domain_problem(error: DomainError, path: str) -> HttpResponse:
    status = STATUS.get(error.kind, 500)
    return problem(
        status,
        error.kind,
        error.title,
        error.message,
        path=path,
        errors=[{"field": name, "message": text} for name, texts in error.fields.items() for text in texts]
        if isinstance(error, InvalidInput)
        else None,
        headers={"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None,
    )


def _framework_problem(error: exceptions.APIException, path: str) -> HttpResponse:
    status = error.status_code
    kind = _KIND_OF_STATUS.get(status, "error")
    title = kind.replace("-", " ").capitalize()
    headers: dict[str, str] = {}
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = error.auth_header
    if getattr(error, "wait", None):
        headers["Retry-After"] = str(int(error.wait) + 1)
    if isinstance(error, exceptions.ValidationError):
        errors = [{"field": name, "message": text} for name, text in _flat(error.detail)]
        detail = "; ".join(f"{e['field']}: {e['message']}" if e["field"] else e["message"] for e in errors)
        return problem(status, kind, title, detail, path=path, errors=errors, headers=headers)
    errors = [] if isinstance(error, exceptions.ParseError) else None
    if errors is not None:
        errors.append({"field": "", "message": str(error.detail)})
    return problem(
        status, kind, title, str(error.detail) or HTTPStatus(status).phrase, path=path, errors=errors, headers=headers
    )


def _flat(detail: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """DRF's nested errors as (dotted field, message)."""
    if isinstance(detail, Mapping):
        for key, inner in detail.items():
            part = "" if key == "non_field_errors" else str(key)
            yield from _flat(inner, f"{name}.{part}".strip("."))
    elif isinstance(detail, list | tuple):
        for place, inner in enumerate(detail):
            yield from _flat(inner, f"{name}.{place}".strip(".") if isinstance(inner, Mapping) else name)
    else:
        yield name, str(detail)


def _encodable(value: Any) -> Any:
    """A message may quote what was sent, and that need not be valid Unicode."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    return value

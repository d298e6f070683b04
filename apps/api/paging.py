"""Keyset pages: they cost the same at any depth, and rows that come or go meanwhile neither repeat nor hide others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core import signing
from django.db.models import Q, QuerySet
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from apps.core.errors import InvalidInput

SIZE = 50
MAX_SIZE = 200

# (what lies beyond the cursor, whether downward, how many) -> a query for the pks of the first so many.
Window = Callable[[Q, bool, int], QuerySet[Any]]


class KeysetPagination(BasePagination):
    """`keys` are the columns of the order, all up or (with "-") all down, the last of them unique, none ever NULL.

    A cursor is the keys of the row at the edge, signed, so that nobody can put other things into the query.
    """

    def paginate(
        self,
        request: Request,
        rows: QuerySet[Any],
        *,
        columns: Mapping[str, str],
        keys: Sequence[str],
        show: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        window: Window | None = None,
    ) -> dict[str, Any]:
        """`window` may find the page's rows by itself, where narrowing and ordering `rows` would be slow."""
        size = _size(request.query_params.get("limit"))
        salt = f"page:{request.path}:{','.join(keys)}"
        back, edge = _read(request.query_params.get("cursor"), salt, len(keys))
        down = keys[0].startswith("-")
        names = [key.removeprefix("-") for key in keys]
        beyond = Q() if edge is None else _beyond(names, edge, lower=down != back)
        rows = rows.filter(beyond) if window is None else rows.filter(pk__in=window(beyond, down != back, size + 1))
        order = [f"-{name}" if down != back else name for name in names]
        found = list(rows.order_by(*order).values_list(*columns.values(), *names)[: size + 1])
        more, found = len(found) > size, found[:size]
        if back:
            found.reverse()
        has_next, has_previous = (bool(found), more) if back else (more, edge is not None and bool(found))

        def link(is_there: bool, row: int, towards: str) -> str | None:
            if not is_there:
                return None
            cursor = _write(towards, found[row][len(columns) :], salt)
            return replace_query_param(request.build_absolute_uri(), "cursor", cursor)

        shown = [dict(zip(columns, row, strict=False)) for row in found]
        return {
            "next": link(has_next, -1, "next"),
            "previous": link(has_previous, 0, "previous"),
            "results": [show(row) for row in shown] if show else shown,
        }

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"type": "string", "format": "uri", "nullable": True}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": link, "previous": link, "results": schema},
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        return [
            {
                "name": "cursor",
                "in": "query",
                "required": False,
                "description": "Where to go on: only ever taken from `next` or `previous`.",
                "schema": {"type": "string"},
            },
            {
                "name": "limit",
                "in": "query",
                "required": False,
                "description": "Rows on a page.",
                "schema": {"type": "integer", "minimum": 1, "maximum": MAX_SIZE, "default": SIZE},
            },
        ]


def _size(text: str | None) -> int:
    if text is None:
        return SIZE
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_SIZE):
        raise InvalidInput({"limit": f"{text[:40]!r} is no number from 1 to {MAX_SIZE}."})
    return int(text)


def _beyond(names: Sequence[str], edge: Sequence[Any], *, lower: bool) -> Q:
    """Rows after the edge in the order of the keys: less (or more) in the first key that differs."""
    beyond, equal = Q(), Q()
    for name, value in zip(names, edge, strict=True):
        beyond |= equal & Q(**{f"{name}__{'lt' if lower else 'gt'}": value})
        equal &= Q(**{name: value})
    return beyond


def _write(towards: str, edge: Sequence[Any], salt: str) -> str:
    values = [{"at": value.isoformat()} if isinstance(value, datetime) else value for value in edge]
    return signing.Signer(salt=salt).sign_object([towards, values])


def _read(text: str | None, salt: str, count: int) -> tuple[bool, list[Any] | None]:
    """Whether to go back, and from where; no cursor: the first page. Raises InvalidInput."""
    if text is None:
        return False, None
    try:
        towards, values = signing.Signer(salt=salt).unsign_object(text)
    except Exception:  # whatever a torn or made-up cursor makes the decoder stumble over
        raise InvalidInput({"cursor": "This cursor is not one of this list's; start at the first page."}) from None
    if len(values) != count:
        raise InvalidInput({"cursor": "This cursor is of another version; start at the first page."})
    return towards == "previous", [datetime.fromisoformat(v["at"]) if isinstance(v, dict) else v for v in values]

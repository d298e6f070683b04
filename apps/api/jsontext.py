"""JSON in and out. A module of its own: the settings name it, and REST framework loads what they name very early."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import orjson
from django.conf import settings
from django.utils.functional import Promise
from rest_framework import exceptions, parsers, renderers
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request

from apps.api.problems import TooLarge


class JSONParser(parsers.BaseParser):
    """Strict JSON: no NaN, no lone surrogates, no endless nesting, no larger than the settings allow."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise TooLarge(f"The body is larger than {limit // 2**20} MiB.")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise exceptions.ParseError(f"The body is not JSON: {error}.") from None


class JSONRenderer(renderers.BaseRenderer):
    """orjson; decimals as strings, times as ISO 8601 with Z."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        return b"" if data is None else to_json(data)


def to_json(data: Any) -> bytes:
    return orjson.dumps(data, default=_plain, option=orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC | orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, Promise):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


class AlwaysFirst(BaseContentNegotiation):
    """JSON whatever `Accept` says; raw logs and files answer for themselves."""

    def select_parser(self, request: Request, parsers: list[Any]) -> Any:
        wanted = (request.content_type or "").split(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == wanted), None)

    def select_renderer(self, request: Request, renderers: list[Any], format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type

"""What every endpoint stands on: who asks, what may be done, how bodies are read and answers are written.

An endpoint is an `ApiViewSet` with `verbs = {action: verb}`; an action without a verb is allowed to nobody. Lists give
`columns` (name in the answer -> path in the rows) and `keys` (see paging.py); rows are never turned into objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, TypeVar

from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.plumbing import build_bearer_security_scheme_object
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from apps.api.jsontext import AlwaysFirst, JSONParser, JSONRenderer, to_json
from apps.api.paging import KeysetPagination, Window
from apps.core.errors import InvalidInput, NotAllowed
from apps.core.permissions import ALLOWED, OPERATOR, PERSON, require, site_roles

T = TypeVar("T")

DRY_RUN = OpenApiParameter(
    "dry_run", bool, description="Do everything but keep it: the answer says what would be. Nothing is changed."
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Up to 200 printable ASCII characters. The same key with the same content makes nothing new and "
    "answers 200 with `Idempotency-Replayed: true`; with other content it is a conflict.",
)


# -- who may -----------------------------------------------------------------------------------------------------------


class TokenScheme(OpenApiAuthenticationExtension):
    """What the schema says of tokens."""

    target_class = "apps.api.tokens.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return build_bearer_security_scheme_object(header_name="Authorization", token_prefix="Bearer")  # noqa: S106


class HasVerb(IsAuthenticated):
    """Deny by default. A verb that only the site's roles decide is decided here; others by the action on its thing."""

    def has_permission(self, request: Request, view: ApiViewSet) -> bool:
        if not super().has_permission(request, view):
            return False
        if request.user.must_change_password:
            raise NotAllowed("Your password was set by somebody else. Sign in to the pages and choose your own first.")
        action = view.action
        if action in {None, "metadata"}:  # the method is not offered: answered with 405
            return True
        verb = view.verbs.get(action)
        if verb is None:
            raise NotAllowed(f"Nobody may do this ({action}).")
        if ALLOWED.get(verb, frozenset()) <= {PERSON, OPERATOR}:
            require(verb, site_roles(request.user))
        return True


# -- bodies in, answers out --------------------------------------------------------------------------------------------


class StrictSerializer(serializers.Serializer):
    """What a body may hold. A field it does not know is refused by name, so that a typing error is never ignored."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = sorted(str(name)[:100] for name in data.keys() - self.fields.keys())
            if unknown:
                known = ", ".join(name for name, field in self.fields.items() if not field.read_only)
                raise serializers.ValidationError(
                    dict.fromkeys(unknown, f"There is no field of this name; there is: {known or 'none'}.")
                )
        return super().to_internal_value(data)


class ApiViewSet(GenericViewSet):
    """Base of all endpoints."""

    verbs: ClassVar[dict[str, str]] = {}
    columns: ClassVar[dict[str, str]] = {}
    keys: ClassVar[tuple[str, ...]] = ("-id",)

    permission_classes = [HasVerb]
    parser_classes = [JSONParser]
    renderer_classes = [JSONRenderer]
    content_negotiation_class = AlwaysFirst
    pagination_class = KeysetPagination
    http_method_names = ["get", "head", "post", "put", "patch", "delete"]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """No text with a NUL ever reaches the database, which knows no such text."""
        super().initial(request, *args, **kwargs)
        if any("\0" in str(value) for value in kwargs.values()):
            raise Http404
        for name, values in request.query_params.lists():
            if "\0" in name or any("\0" in value for value in values):
                raise InvalidInput({name.replace("\0", "?"): "This holds a NUL character, so it is not text."})

    def finalize_response(self, request: HttpRequest, response: HttpResponse, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if not response.has_header("Cache-Control"):
            response["Cache-Control"] = "private, no-cache"
        return response

    def page(
        self,
        rows: QuerySet[Any],
        *,
        show: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        window: Window | None = None,
    ) -> Response:
        """One page of `rows`, filtered by the view's filter set; `show` may finish each row; `window`: see paging."""
        filterset = getattr(self, "filterset_class", None)
        refuse_unknown_params(self.request, {"cursor", "limit", *(filterset.base_filters if filterset else ())})
        rows = self.filter_queryset(rows)
        found = KeysetPagination().paginate(
            self.request, rows, columns=self.columns, keys=self.keys, show=show, window=window
        )
        return Response(found)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.page(self.get_queryset())

    def body(self, serializer: type[serializers.Serializer]) -> dict[str, Any]:
        """The checked body. Raises ValidationError naming each field that is wrong."""
        data = self.request.data
        checked = serializer(data=data if data or isinstance(data, list) else {})
        checked.is_valid(raise_exception=True)
        return dict(checked.validated_data)

    def carry_out(self, action: Callable[[], T]) -> T:
        """Do it; with `?dry_run=true` in a transaction that is rolled back, so that only the answer is left of it."""
        if not is_dry_run(self.request):
            return action()
        with transaction.atomic():
            answer = action()
            transaction.set_rollback(True)
        return answer

    def fresh(self, data: Any) -> HttpResponse:
        """`data`, or 304 when the asker has it already (`If-None-Match`)."""
        body = to_json(data)
        etag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
        known = {tag.strip().removeprefix("W/") for tag in self.request.headers.get("If-None-Match", "").split(",")}
        if etag in known or "*" in known:
            return HttpResponse(status=304, headers={"ETag": etag})
        return HttpResponse(body, content_type="application/json", headers={"ETag": etag})


def is_dry_run(request: Request) -> bool:
    """Raises InvalidInput for a value that is neither yes nor no: it must not be guessed."""
    text = request.query_params.get("dry_run", "false").lower()
    if text not in {"true", "false", "1", "0"}:
        raise InvalidInput({"dry_run": f"{text[:40]!r} is neither true nor false."})
    return text in {"true", "1"}


def refuse_unknown_params(request: Request, known: set[str]) -> None:
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        text = f"There is no parameter of this name; there is: {', '.join(sorted(known))}."
        raise InvalidInput({name[:100]: text for name in unknown})


def int_param(request: Request, name: str, default: int | None, least: int, most: int) -> int | None:
    """A whole number of the query string. Raises InvalidInput."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise InvalidInput({name: f"{text[:40]!r} is no whole number from {least:,} to {most:,}."})
    return int(text)


# A number in a row's own columns: anything larger would be refused by the database, not by us.
IdField = partial(serializers.IntegerField, min_value=1, max_value=2**63 - 1)

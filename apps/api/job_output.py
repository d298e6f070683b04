"""The door for output of jobs on other machines. No person comes in here: the wrapped script of one attempt does."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.core.cache import cache
from django.http import Http404, HttpResponse
from django.urls import path
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import exceptions, serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.parsers import BaseParser
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from apps.api.base import ApiViewSet, refuse_unknown_params
from apps.api.problems import TooLarge, problem
from apps.core.errors import InvalidInput
from apps.core.permissions import JOB, require
from apps.jobs import logstore
from apps.jobs.job_output import STREAMS, append_output, sending_attempt
from apps.jobs.models import JobAttempt

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024
# Three streams every two seconds are 90 a minute; the rest is for catching up.
MAX_POSTS_A_MINUTE = 600


class JobTokenAuthentication(BaseAuthentication):
    """`Authorization: Job <token>`. There is no user behind it: `request.auth` is the attempt that sends."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, JobAttempt] | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Job":
            return None
        attempt = sending_attempt(token, _count(request, "X-Restart", 0, 2**31 - 1))
        if attempt is None:
            raise exceptions.AuthenticationFailed("This token opens no job's log, or not any more.")
        return AnonymousUser(), attempt

    def authenticate_header(self, request: Request) -> str:
        return "Job"


class JobTokenScheme(OpenApiAuthenticationExtension):
    target_class = JobTokenAuthentication
    name = "job"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": "`Job <token>`. The token is in the job's wrapped script, and does this alone.",
        }


class IsJob(BasePermission):
    def has_permission(self, request: Request, view: ApiViewSet) -> bool:
        if not isinstance(request.auth, JobAttempt):
            return False
        if view.action in view.verbs:
            require(view.verbs[view.action], {JOB})
        return True


class PostsOfOneJob(BaseThrottle):
    """So many posts a minute for one attempt. Without the cache there is no limit: losing a log would be worse."""

    def allow_request(self, request: Request, view: ApiViewSet) -> bool:
        key = f"job-output:{request.auth.pk}"
        try:
            cache.add(key, 0, timeout=self.wait())
            return cache.incr(key) <= MAX_POSTS_A_MINUTE
        except Exception as error:  # it is down, or has just forgotten the key
            log.info("posts of attempt %s are not counted: %s", request.auth.pk, error)
            return True

    def wait(self) -> int:
        return 60


class BytesParser(BaseParser):
    media_type = "application/octet-stream"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> bytes:
        body: bytes = stream.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"A post may have {MAX_BODY_BYTES:,} bytes; send the rest in the next one.")
        return body


class OffsetOut(serializers.Serializer):
    offset = serializers.IntegerField(help_text="Where the next bytes belong.")


class JobOutput(ApiViewSet):
    verbs = {"append": "output.append"}
    authentication_classes = [JobTokenAuthentication]
    permission_classes = [IsJob]
    throttle_classes = [PostsOfOneJob]
    parser_classes = [BytesParser]
    serializer_class = OffsetOut
    pagination_class = None

    @extend_schema(
        operation_id="job_output_append",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={
            200: OffsetOut,
            409: OpenApiResponse(description="Bytes before these are missing; `X-Offset` says from where on."),
        },
        parameters=[
            OpenApiParameter("stream", str, OpenApiParameter.PATH, enum=STREAMS),
            OpenApiParameter(
                "X-Offset", int, OpenApiParameter.HEADER, required=True, description="Where in the stream these belong."
            ),
            OpenApiParameter(
                "X-Restart",
                int,
                OpenApiParameter.HEADER,
                description="How often the scheduler has started the job anew.",
            ),
        ],
    )
    def append(self, request: Request, stream: str) -> Response | HttpResponse:
        """Add to the log of the job that sends. Bytes that are there already are not added again."""
        refuse_unknown_params(request, set())
        if stream not in STREAMS:
            raise Http404
        offset = _count(request, "X-Offset", None, 2**63 - 1)
        data = request.data if isinstance(request.data, bytes) else b""  # an empty body has no type
        try:
            end = append_output(request.auth, stream, offset, data)
        except logstore.Gap as gap:
            return problem(
                409,
                "conflict",
                "Conflict",
                f"Bytes are missing before these: go on from {gap.wanted}.",
                path=request.path,
                headers={"X-Offset": str(gap.wanted)},
            )
        except logstore.Full:
            raise TooLarge(f"A stream may have {logstore.MAX_BYTES:,} bytes.") from None
        return Response({"offset": end}, headers={"X-Offset": str(end)})


def _count(request: Request, header: str, default: int | None, most: int) -> int:
    text = request.headers.get(header)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= most):
        raise InvalidInput({header: f"Give a whole number from 0 to {most:,}."})
    return int(text)


urlpatterns = [path("job-output/<str:stream>/", JobOutput.as_view({"post": "append"}), name="job-output")]

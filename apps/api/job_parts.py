"""What belongs to one job: attempts, events, checkpoints, metrics, files and logs."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import FileResponse, HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.base import ApiViewSet, int_param, refuse_unknown_params
from apps.api.job_shapes import STREAM_CHOICES, AttemptOut, CheckpointOut, EventOut, FilesOut, MetricsOut
from apps.api.problems import problem
from apps.jobs.models import Checkpoint, Job, JobAttempt, JobEvent, MetricSeries
from apps.jobs.queries import attempt_of, list_files, open_file, read_log, series_of
from apps.jobs.rights import visible_job
from apps.jobs.states import FINAL

MAX_SERIES = 50
LOG_BYTES = 256 * 1024
MAX_LOG_BYTES = 1024 * 1024
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z")

ATTEMPT = OpenApiParameter("attempt", int, description="The number of the attempt; without it, the latest.")
PATH = OpenApiParameter("path", str, description="Relative to the job's folder.")


class JobPart(ApiViewSet):
    verbs: ClassVar[dict[str, str]] = {"list": "job.view", "retrieve": "job.view", "download": "job.view"}

    @property
    def job(self) -> Job:
        return visible_job(self.request.user, self.kwargs["public_id"])

    @property
    def attempt(self) -> JobAttempt:
        number = int_param(self.request, "attempt", None, 1, 2**31 - 1)
        return attempt_of(self.request.user, self.kwargs["public_id"], number)


class Attempts(JobPart):
    """Each try at the scheduler, the latest first."""

    queryset = JobAttempt.objects.none()
    serializer_class = AttemptOut
    keys = ("-number", "-id")
    columns = {name: name for name in AttemptOut().fields}

    def get_queryset(self) -> QuerySet[JobAttempt]:
        return JobAttempt.objects.filter(job=self.job)


class Events(JobPart):
    """What happened to the job, the latest first. Nothing is ever changed here."""

    queryset = JobEvent.objects.none()
    serializer_class = EventOut
    columns = {"at": "at", "kind": "kind", "text": "text", "actor": "actor_name", "attempt": "attempt__number"}

    def get_queryset(self) -> QuerySet[JobEvent]:
        return JobEvent.objects.filter(job=self.job)


class Checkpoints(JobPart):
    """Files that the job says it has saved, the latest first. `id` goes into `parent_checkpoint` of another job."""

    queryset = Checkpoint.objects.none()
    serializer_class = CheckpointOut
    columns = {"id": "id", "path": "path", "step": "step", "at": "at", "attempt": "attempt__number"}

    def get_queryset(self) -> QuerySet[Checkpoint]:
        return Checkpoint.objects.filter(job=self.job)


class Metrics(JobPart):
    serializer_class = MetricsOut
    pagination_class = None

    @extend_schema(
        responses=MetricsOut,
        parameters=[ATTEMPT, OpenApiParameter("name", str, many=True, description="Without it, the first fifty.")],
    )
    def retrieve(self, request: Request, public_id: str) -> Any:
        """What the job measured of itself, as columns. Has an ETag."""
        refuse_unknown_params(request, {"attempt", "name"})
        attempt = self.attempt
        names = request.query_params.getlist("name") or list(
            MetricSeries.objects.filter(attempt_id=attempt.pk)
            .order_by("name")
            .values_list("name", flat=True)[:MAX_SERIES]
        )
        return self.fresh(
            {
                "attempt": attempt.number,
                "skipped_lines": attempt.metrics_skipped,
                "series": [
                    {
                        "name": series.name,
                        "count": series.count,
                        "last_step": series.last_step,
                        "last_value": series.last_value,
                        "steps": series.data.get("steps", []),
                        "values": series.data.get("values", []),
                    }
                    for series in series_of(attempt, names[:MAX_SERIES])
                ],
            }
        )


class Files(JobPart):
    serializer_class = FilesOut
    pagination_class = None

    @extend_schema(responses=FilesOut, parameters=[ATTEMPT, PATH])
    def retrieve(self, request: Request, public_id: str) -> Response:
        """A folder of the job's files, up to 1,000 entries; links are left out."""
        refuse_unknown_params(request, {"attempt", "path"})
        attempt, where = self.attempt, request.query_params.get("path", "")
        listing = list_files(attempt, where)
        entries = [
            {
                "name": entry.name,
                "path": entry.path,
                "is_folder": entry.is_folder,
                "size_bytes": entry.size_bytes,
                "modified_at": entry.modified_at,
            }
            for entry in listing.entries
        ]
        return Response({"attempt": attempt.number, "path": where, "entries": entries, "truncated": listing.truncated})

    @extend_schema(
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
        parameters=[ATTEMPT, OpenApiParameter("path", str, required=True, description="Relative to the job's folder.")],
    )
    def download(self, request: Request, public_id: str) -> FileResponse:
        """One file, whole."""
        refuse_unknown_params(request, {"attempt", "path"})
        where = request.query_params.get("path", "")
        file = open_file(self.attempt, where)
        return FileResponse(
            file, as_attachment=True, filename=where.rsplit("/", 1)[-1], content_type="application/octet-stream"
        )


class Log(JobPart):
    pagination_class = None

    @extend_schema(
        responses={(200, "text/plain"): OpenApiTypes.STR, (206, "text/plain"): OpenApiTypes.STR},
        parameters=[
            ATTEMPT,
            OpenApiParameter("stream", str, enum=STREAM_CHOICES, default="stdout"),
            OpenApiParameter("offset", int, description="In bytes; negative: from the end.", default=0),
            OpenApiParameter("limit", int, description=f"In bytes, up to {MAX_LOG_BYTES}.", default=LOG_BYTES),
            OpenApiParameter("Range", str, OpenApiParameter.HEADER, description="One range of bytes, instead."),
        ],
    )
    def retrieve(self, request: Request, public_id: str) -> HttpResponse:
        """Bytes of the log as the job wrote them.

        `Log-Start`, `Log-End` and `Log-Size` say which bytes these are (go on with `offset` = `Log-End`), `Job-Final`
        whether more can come. With a `Range` header the answer is 206 with `Content-Range`.
        """
        refuse_unknown_params(request, {"attempt", "stream", "offset", "limit"})
        attempt, stream = self.attempt, request.query_params.get("stream", "stdout")
        ranged = _RANGE.match(request.headers.get("Range", ""))
        if ranged and ranged.group(0) != "bytes=-":
            start, limit = _start_and_limit(*ranged.groups())
        else:
            ranged = None
            start = int_param(request, "offset", 0, -(2**62), 2**62)
            limit = int_param(request, "limit", LOG_BYTES, 1, MAX_LOG_BYTES)
        chunk = read_log(attempt, stream, start, limit)
        if ranged and not chunk.data:
            return problem(
                416,
                "range-not-satisfiable",
                "Range not satisfiable",
                f"The log has {chunk.size_bytes:,} bytes.",
                path=request.path,
                headers={"Content-Range": f"bytes */{chunk.size_bytes}"},
            )
        headers = {
            "Log-Start": str(chunk.start),
            "Log-End": str(chunk.end),
            "Log-Size": str(chunk.size_bytes),
            "Job-Final": "true" if attempt.state in FINAL or attempt.job.state in FINAL else "false",
            "X-Content-Type-Options": "nosniff",
            "Accept-Ranges": "bytes",
        }
        if ranged:
            headers["Content-Range"] = f"bytes {chunk.start}-{chunk.end - 1}/{chunk.size_bytes}"
        return HttpResponse(
            chunk.data, status=206 if ranged else 200, content_type="text/plain; charset=utf-8", headers=headers
        )


def _start_and_limit(first: str, last: str) -> tuple[int, int]:
    """Of `bytes=first-last`, `bytes=first-` or `bytes=-count`. Fewer bytes than were asked for may be sent."""
    if not first:
        count = min(int(last), MAX_LOG_BYTES)
        return (-count, count) if count else (2**62, 1)
    start = int(first)
    return start, min(int(last) - start + 1, MAX_LOG_BYTES) if last and int(last) >= start else MAX_LOG_BYTES


def _at(name: str, view: type[JobPart], action: str, url: str | None = None) -> Any:
    return path(f"jobs/<str:public_id>/{url or name}/", view.as_view({"get": action}), name=f"job-{name}")


part_urls = [
    _at("attempts", Attempts, "list"),
    _at("events", Events, "list"),
    _at("checkpoints", Checkpoints, "list"),
    _at("metrics", Metrics, "retrieve"),
    _at("files", Files, "retrieve"),
    _at("file", Files, "download", "files/download"),
    _at("log", Log, "retrieve"),
]

"""Pages of jobs: the list, one job, its log and its files."""

from __future__ import annotations

import csv
from datetime import datetime
from typing import Any

from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import path, reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from apps.accounts.permissions import visible_projects
from apps.core.errors import DomainError, InvalidInput, NotFound
from apps.core.units import format_duration
from apps.inventory.models import Cluster
from apps.inventory.queries import is_stale
from apps.jobs import logtext
from apps.jobs.actions import cancel_job, cancel_jobs, hold_job, release_job
from apps.jobs.folder import Chunk
from apps.jobs.models import Job, JobKind
from apps.jobs.queries import (
    CAP,
    STATE_GROUPS,
    JobDetail,
    JobFilters,
    attempt_of,
    capped_total,
    first_jobs,
    job_detail,
    job_list,
    list_files,
    open_file,
    read_log,
    series_of,
    timeline,
)
from apps.jobs.rights import visible_job
from apps.jobs.states import ACTIVE, FAILURES, FINAL, JobState
from apps.web.figures.jobs import chart_groups, metric_figure
from apps.web.render import allows, figure_response, fragment, page, toast

LOG_BYTES = 256 * 1024
LOG_TAIL_BYTES = 64 * 1024
_FILTERS = ("state", "kind", "project", "person", "cluster", "tag", "q")


@require_GET
@allows("job.view")
def jobs(request: HttpRequest) -> HttpResponse:
    problems: dict[str, list[str]] = {}
    try:
        filters = JobFilters.from_params(request.GET)
        shown = job_list(request.user, filters, after=request.GET.get("after"), before=request.GET.get("before"))
    except InvalidInput as error:  # the page stays, and says which filter was no use
        problems, filters = error.fields, JobFilters()
        shown = job_list(request.user, filters)
    context = {
        "nav": "jobs",
        "page": shown,
        "problems": problems,
        "has_filters": any(request.GET.get(name) for name in _FILTERS),
        "is_moving": any(job.state not in FINAL for job in shown.rows),
        "may_cancel": any(job.state not in FINAL for job in shown.rows),
    }
    if request.GET.get("format") == "csv":
        return _as_csv(first_jobs(request.user, filters, CAP))
    if request.headers.get("HX-Request"):
        return fragment(request, "jobs/_rows.html", context)
    total, is_capped = capped_total(request.user, filters)
    context |= {
        "total": f"{total:,}{'+' if is_capped else ''}",
        "groups": list(STATE_GROUPS),
        "states": [s.value for s in JobState],
        "kinds": JobKind.choices,
        "projects": visible_projects(request.user).values_list("name", flat=True)[:200],
        "clusters": Cluster.objects.values_list("name", flat=True)[:200],
        "chosen": {name: request.GET.get(name, "") for name in _FILTERS},
    }
    return page(request, "jobs/list.html", context)


_COLUMNS = (
    *("id", "name", "state", "reason", "kind", "project", "person", "cluster", "nodes", "gpus_per_node"),
    *("cpus_per_node", "submitted_at", "started_at", "ended_at", "exit_code", "cpu_hours", "gpu_hours"),
)


def _as_csv(rows: list[Job]) -> HttpResponse:
    """Up to 10,000 jobs, newest first; times in ISO 8601 UTC."""
    response = HttpResponse(content_type="text/csv")
    response["Content-Disposition"] = 'attachment; filename="jobs.csv"'
    writer = csv.writer(response)
    writer.writerow(_COLUMNS)
    for row in rows:
        times = [at.isoformat() if at else "" for at in (row.created_at, row.started_at, row.ended_at)]
        person = row.submitted_by.username if row.submitted_by else row.unix_user
        words = [row.public_id, row.name, row.state, row.reason, row.kind, str(row.project or ""), person]
        sizes = [row.nodes, row.accelerators_per_node, row.cpus_per_node]
        used = [row.exit_code, row.cpu_hours, row.gpu_hours]
        writer.writerow([*map(_harmless, words), row.cluster.name, *sizes, *times, *used])
    return response


@require_GET
@allows("job.view")
def job(request: HttpRequest, public_id: str) -> HttpResponse:
    detail = job_detail(request.user, public_id)
    context = _status_context(detail)
    if request.headers.get("HX-Request"):
        return fragment(request, "jobs/_status.html", context)
    stream = "stderr" if request.GET.get("stream") == "stderr" else "stdout"
    context |= {
        "stream": stream,
        "log": _log(attempt_of(request.user, public_id), stream, -LOG_TAIL_BYTES, detail.job),
        "environment": sorted(detail.job.environment.items()),
    }
    return page(request, "jobs/detail.html", context)


def _status_context(detail: JobDetail) -> dict[str, Any]:
    by_name = {series.name: series for series in detail.series}
    groups = chart_groups(list(by_name))
    return {
        "nav": "jobs",
        "detail": detail,
        "job": detail.job,
        "sentence": sentence(detail.job, timezone.now()),
        "why_failed": why_failed(detail),
        "timeline": timeline(detail),
        "groups": groups,
        "key_series": [by_name[name] for names in groups for name in names][:4],
        "is_final": detail.job.state in FINAL,
        "is_stale": is_stale(detail.job.cluster),
    }


def sentence(job: Job, now: datetime) -> str:
    """The job's state in words: "Running for 3:14 on 1 node, step 400 of 1,000, about 4:51 left"."""
    nodes = f"{job.nodes:,} node{'' if job.nodes == 1 else 's'}"
    if job.state in ACTIVE and job.started_at:
        elapsed_s = (now - job.started_at).total_seconds()
        parts = [f"Running for {format_duration(elapsed_s)} on {nodes}"]
        if job.progress_text:
            parts.append(job.progress_text)
        if job.progress and job.progress > 0.01:
            parts.append(f"about {format_duration(elapsed_s / job.progress * (1 - job.progress))} left")
        return ", ".join(parts)
    if job.state in FINAL:
        words = job.state.replace("_", " ").capitalize()
        if job.started_at and job.ended_at:
            return f"{words} after {format_duration((job.ended_at - job.started_at).total_seconds())} on {nodes}"
        return f"{words} before it started"
    waits = f"Waiting for {format_duration((now - job.created_at).total_seconds())}, wants {nodes}"
    return f"{waits}: {job.reason}" if job.reason else waits


def why_failed(detail: JobDetail) -> str:
    """One line: how it ended and what it said last; "" when it did not fail."""
    job, attempt = detail.job, detail.attempt
    if job.state not in FAILURES:
        return ""
    parts = [job.reason or job.state.replace("_", " ")]
    if job.exit_code is not None and f"{job.exit_code}" not in parts[0]:
        parts.append(f"exit code {job.exit_code}")
    if job.exit_signal is not None and f"{job.exit_signal}" not in parts[0]:
        parts.append(f"signal {job.exit_signal}")
    if attempt is not None and attempt.last_words:
        parts.append(f"last words: {attempt.last_words}")
    return "; ".join(parts)


@require_GET
@allows("job.view")
def chart(request: HttpRequest, public_id: str) -> HttpResponse:
    attempt = attempt_of(request.user, public_id)
    series = series_of(attempt, request.GET.getlist("name")[:20])
    if request.GET.get("format") == "csv":
        response = HttpResponse(content_type="text/csv")
        response["Content-Disposition"] = f'attachment; filename="{public_id}-metrics.csv"'
        writer = csv.writer(response)
        writer.writerow(["metric", "step", "value"])
        for one in series:
            writer.writerows(
                (_harmless(one.name), step, value)
                for step, value in zip(one.data["steps"], one.data["values"], strict=True)
            )
        return response
    if request.GET.get("format") == "table":
        rows = [(one.name, list(zip(one.data["steps"], one.data["values"], strict=True))) for one in series]
        return page(request, "jobs/metrics.html", {"nav": "jobs", "job": attempt.job, "series": rows})
    figure = metric_figure([(one.name, one.data) for one in series], uirevision=f"{public_id}:{attempt.number}")
    return figure_response(request, figure, is_final=attempt.job.state in FINAL)


def _harmless(text: str) -> str:
    """A cell that a spreadsheet will not take for a formula."""
    return f"'{text}" if text[:1] in {"=", "+", "-", "@"} else text


@require_GET
@allows("job.view")
def log(request: HttpRequest, public_id: str) -> HttpResponse:
    """New lines since `offset`, for the viewer; with `download`, the whole file."""
    attempt = attempt_of(request.user, public_id, _number(request, "attempt"))
    stream = request.GET.get("stream", "stdout")
    if "download" in request.GET:
        path = attempt.stdout_path if stream == "stdout" else attempt.stderr_path
        return _attachment(open_file(attempt, path.removeprefix(f"{attempt.folder}/")), f"{public_id}-{stream}.log")
    start = _number(request, "offset")
    found = _log(attempt, stream, -LOG_TAIL_BYTES if start is None else start, attempt.job)
    return JsonResponse(
        {
            "problem": found["problem"],
            "attempt": attempt.number,
            "start": found["start"],
            "end": found["end"],
            "size": found["size"],
            "final": found["final"],
            "lines": [[line.spans, line.is_error] for line in found["lines"]],
            "partial": found["partial"],
        }
    )


def _log(attempt: Any, stream: str, start: int, job: Job) -> dict[str, Any]:
    """Whole lines from `start` on; what has no end yet is `partial`, and is read again the next time."""
    is_final = job.state in FINAL or attempt.number < job.attempt_count
    problem = ""
    try:
        chunk = read_log(attempt, stream, start, LOG_BYTES)
    except NotFound as error:  # a job may do as it likes with its own log; the rest of its page is still there
        chunk, problem = Chunk(b"", 0, 0, 0), error.message
    data = chunk.data
    if start < 0 < chunk.start:  # a tail starts in the middle of a line
        data = data[data.find(b"\n") + 1 :]
    whole = data.rfind(b"\n") + 1
    if len(chunk.data) >= LOG_BYTES and whole == 0:
        whole = len(data)
    partial = data[whole:]
    is_complete = is_final and chunk.end >= chunk.size_bytes
    if is_complete:
        whole, partial = len(data), b""
    return {
        "problem": problem,
        "attempt": attempt.number,
        "start": chunk.end - len(data),
        "end": chunk.end - len(partial),
        "size": chunk.size_bytes,
        "lines": logtext.render(data[:whole]) if whole else [],
        "partial": logtext.plain(partial[-4096:]) if partial else "",
        "final": is_complete,
        "more": chunk.end < chunk.size_bytes,
    }


@require_GET
@allows("job.view")
def files(request: HttpRequest, public_id: str) -> HttpResponse:
    attempt = attempt_of(request.user, public_id, _number(request, "attempt"))
    where = request.GET.get("path", "")
    if "download" in request.GET:
        return _attachment(open_file(attempt, where), where.rsplit("/", 1)[-1])
    parts = [part for part in where.split("/") if part]
    context = {
        "nav": "jobs",
        "job": attempt.job,
        "attempt": attempt,
        "listing": list_files(attempt, where),
        "crumbs": [("/".join(parts[: n + 1]), part) for n, part in enumerate(parts)],
    }
    return page(request, "jobs/files.html", context)


def _attachment(file: Any, name: str) -> FileResponse:
    """Never shown in the browser: a job's file may be a page of somebody's making."""
    response = FileResponse(file, as_attachment=True, filename=name, content_type="application/octet-stream")
    response["X-Content-Type-Options"] = "nosniff"
    return response


def _number(request: HttpRequest, name: str) -> int | None:
    text = request.GET.get(name)
    if text is None or text == "":
        return None
    if not text.isdecimal() or len(text) > 15:
        raise InvalidInput({name: f"{text[:40]!r} is not a whole number."})
    return int(text)


@require_POST
@allows("job.cancel")
def cancel(request: HttpRequest, public_id: str) -> HttpResponse:
    reason = request.POST.get("reason", "").replace("\0", "")[:200]
    return _act(request, public_id, lambda job: cancel_job(job, by=request.user, reason=reason))


@require_POST
@allows("job.hold")
def hold(request: HttpRequest, public_id: str) -> HttpResponse:
    return _act(request, public_id, lambda job: hold_job(job, by=request.user))


@require_POST
@allows("job.release")
def release(request: HttpRequest, public_id: str) -> HttpResponse:
    return _act(request, public_id, lambda job: release_job(job, by=request.user))


def _act(request: HttpRequest, public_id: str, verb: Any) -> HttpResponse:
    found = visible_job(request.user, public_id)
    try:
        verb(found)
    except DomainError as error:
        if error.kind != "conflict":
            raise
        toast(request, error.message, is_error=True)  # it has moved on meanwhile: back to the page, which shows how
    return redirect("web:job", public_id)


@require_POST
@allows("job.cancel")
def bulk_cancel(request: HttpRequest) -> HttpResponse:
    ids = [public_id for public_id in request.POST.getlist("id") if "\0" not in public_id]
    if not ids:
        toast(request, "No job was chosen.", is_error=True)
        return redirect("web:jobs")
    result = cancel_jobs(ids, by=request.user)
    if result.cancelled:
        toast(request, f"{len(result.cancelled):,} of {len(ids):,} jobs are being cancelled.")
    for public_id, why in list(result.skipped.items())[:5]:
        toast(request, f"{public_id}: {why}", is_error=True)
    return redirect(reverse("web:jobs"))


urlpatterns = [
    path("jobs/", jobs, name="jobs"),
    path("jobs/cancel/", bulk_cancel, name="jobs-cancel"),
    path("jobs/<str:public_id>/", job, name="job"),
    path("jobs/<str:public_id>/chart.json", chart, name="job-chart"),
    path("jobs/<str:public_id>/log/", log, name="job-log"),
    path("jobs/<str:public_id>/files/", files, name="job-files"),
    path("jobs/<str:public_id>/cancel/", cancel, name="job-cancel"),
    path("jobs/<str:public_id>/hold/", hold, name="job-hold"),
    path("jobs/<str:public_id>/release/", release, name="job-release"),
]

"""Questions about jobs. Each costs what it shows, whatever the table holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from apps.accounts.models import User
from apps.core.errors import InvalidInput, NotFound
from apps.core.permissions import is_allowed
from apps.jobs import folder
from apps.jobs.listing import count_up_to, first_pks, visible_parts
from apps.jobs.models import Checkpoint, Job, JobAttempt, JobEvent, JobKind, MetricSeries
from apps.jobs.rights import job_roles, visible_job, visible_jobs
from apps.jobs.spec import hours_for
from apps.jobs.states import ACTIVE, FAILURES, FINAL, WAITING, JobState

PAGE_SIZE = 50
CAP = 10_000
SEARCH_CAP = 1000
NOTHING_MORE = Q()
MAX_EVENTS = 100
MAX_ATTEMPTS = 20
MAX_CHECKPOINTS = 20
STREAMS = ("stdout", "stderr")

STATE_GROUPS: dict[str, frozenset[JobState]] = {
    "waiting": WAITING,
    "running": ACTIVE,
    "failed": FAILURES,
    "ended": FINAL,
}


@dataclass(frozen=True)
class JobFilters:
    """What a list is narrowed to; None is everything. `states` holds single states, groups already spread."""

    states: tuple[str, ...] = ()
    kind: str | None = None
    project: str | None = None
    person: str | None = None
    cluster: str | None = None
    tag: str | None = None
    q: str | None = None

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> JobFilters:
        """From a query string. Raises InvalidInput naming the parameter."""
        states: list[str] = []
        problems: dict[str, str] = {}
        for name in filter(None, (params.get("state") or "").split(",")):
            if name in STATE_GROUPS:
                states += [s.value for s in STATE_GROUPS[name]]
            elif name in JobState._value2member_map_:
                states.append(name)
            else:
                problems["state"] = f"{name!r} is no state; use {', '.join([*STATE_GROUPS, *JobState])}."
        kind = params.get("kind") or None
        if kind is not None and kind not in JobKind.values:
            problems["kind"] = f"{kind!r} is no kind of job; use {', '.join(JobKind.values)}."
        texts = {
            name: (params.get(name) or "").strip() or None for name in ("project", "person", "cluster", "tag", "q")
        }
        for name, text in texts.items():
            if text is not None and (len(text) > 200 or "\0" in text):
                problems[name] = "Give up to 200 characters of text."
        if problems:
            raise InvalidInput(problems)
        return cls(states=tuple(sorted(set(states))), kind=kind, **texts)

    def narrow(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        if self.q:  # a part of the name, or a whole id, ours or the scheduler's
            jobs = jobs.filter(Q(name__icontains=self.q) | Q(public_id=self.q) | Q(external_id=self.q))
        if self.states:
            jobs = jobs.filter(state__in=self.states)
        if self.kind:
            jobs = jobs.filter(kind=self.kind)
        if self.project:
            jobs = jobs.filter(project__name=self.project)
        if self.person:
            jobs = jobs.filter(submitted_by__username=self.person)
        if self.cluster:
            jobs = jobs.filter(cluster__name=self.cluster)
        if self.tag:
            jobs = jobs.filter(tags__contains=[self.tag])
        return jobs


@dataclass(frozen=True)
class JobPage:
    """`next` and `previous` are public ids to go on from, None at the ends. Newest first."""

    rows: list[Job]
    next: str | None
    previous: str | None


def first_jobs(
    user: User, filters: JobFilters, count: int, *, beyond: Q = NOTHING_MORE, newest_first: bool = True
) -> list[Job]:
    """The first `count` jobs that this person may see and asked for, without their scripts."""
    pks = first_pks(_parts(user, filters), beyond, newest_first=newest_first, count=count)
    rows = Job.objects.filter(pk__in=pks).select_related("project", "cluster", "submitted_by").defer("script")
    return list(rows.order_by("-id" if newest_first else "id"))


def _parts(user: User, filters: JobFilters) -> list[QuerySet[Job]]:
    return [filters.narrow(part) for part in visible_parts(user)]


def job_list(
    user: User, filters: JobFilters, *, after: str | None = None, before: str | None = None, size: int = PAGE_SIZE
) -> JobPage:
    """One page. `after` and `before` are public ids of jobs at the edges of the page that was shown."""
    if before:
        newer = Q(pk__gt=_edge(user, before, "before"))
        rows = first_jobs(user, filters, size + 1, beyond=newer, newest_first=False)
        more, rows = len(rows) > size, rows[:size][::-1]
        return JobPage(rows, next=rows[-1].public_id if rows else None, previous=rows[0].public_id if more else None)
    older = Q(pk__lt=_edge(user, after, "after")) if after else NOTHING_MORE
    rows = first_jobs(user, filters, size + 1, beyond=older)
    more, rows = len(rows) > size, rows[:size]
    previous = rows[0].public_id if rows and after else None
    return JobPage(rows, next=rows[-1].public_id if more else None, previous=previous)


def _edge(user: User, public_id: str, name: str) -> int:
    pk = visible_jobs(user).filter(public_id=public_id).values_list("pk", flat=True).first()
    if pk is None:
        raise InvalidInput({name: f"There is no job {public_id[:40]!r} to go on from; start at the first page."})
    return pk


def capped_total(user: User, filters: JobFilters) -> tuple[int, bool]:
    """How many there are, counted up to 10,000 (a search: 1,000), and whether there are more."""
    # What a search finds lies scattered over the table, so that each row counted is a page read.
    cap = SEARCH_CAP if filters.q else CAP
    count = count_up_to(_parts(user, filters), NOTHING_MORE, cap + 1)
    return min(count, cap), count > cap


@dataclass(frozen=True)
class JobDetail:
    """All a job's page shows. `attempt` is the latest; `events` are the latest hundred, newest first."""

    job: Job
    attempt: JobAttempt | None
    attempts: list[JobAttempt]
    events: list[JobEvent]
    checkpoints: list[Checkpoint]
    series: list[MetricSeries]
    may: dict[str, bool]
    gpu_hours: Decimal
    cpu_hours: Decimal
    reserved_gpu_hours: Decimal
    reserved_cpu_hours: Decimal


def job_detail(user: User, public_id: str) -> JobDetail:
    """Raises NotFound. A constant number of queries, whatever the job's history."""
    job = visible_job(user, public_id)
    attempts = list(job.attempts.order_by("-number")[:MAX_ATTEMPTS])
    latest = attempts[0] if attempts else None
    roles = job_roles(user, job)
    is_open = job.state not in FINAL
    may = {
        "cancel": is_open and job.wanted != "cancel" and is_allowed("job.cancel", roles),
        "hold": job.state in WAITING and not job.is_held and not job.wanted and is_allowed("job.hold", roles),
        "release": job.state in WAITING and job.is_held and not job.wanted and is_allowed("job.release", roles),
        "rerun": is_allowed("job.rerun", roles) and bool(job.script),
    }
    gpu_hours, cpu_hours = hours_so_far(job)
    reserved = hours_for(job, job.time_limit_s or 0) if is_open else (Decimal(0), Decimal(0))
    series = MetricSeries.objects.filter(attempt=latest) if latest else MetricSeries.objects.none()
    return JobDetail(
        job=job,
        attempt=latest,
        attempts=attempts,
        events=list(job.events.order_by("-id")[:MAX_EVENTS]),
        checkpoints=list(job.checkpoints.order_by("-id")[:MAX_CHECKPOINTS]),
        series=list(series.only("name", "count", "last_step", "last_value", "attempt")),
        may=may,
        gpu_hours=gpu_hours,
        cpu_hours=cpu_hours,
        reserved_gpu_hours=reserved[0],
        reserved_cpu_hours=reserved[1],
    )


def hours_so_far(job: Job) -> tuple[Decimal, Decimal]:
    """GPU-hours and CPU-hours of the ended attempts, and of the running one until now."""
    gpu, cpu = job.gpu_hours or Decimal(0), job.cpu_hours or Decimal(0)
    if job.state in ACTIVE and job.started_at is not None:
        running = hours_for(job, max(0.0, (timezone.now() - job.started_at).total_seconds()))
        gpu, cpu = gpu + running[0], cpu + running[1]
    return gpu, cpu


def attempt_of(user: User, public_id: str, number: int | None = None) -> JobAttempt:
    """One attempt of a job the person may see, the latest by default. Raises NotFound.

    A job that was not handed over yet has an attempt to come: one that is not stored, without files.
    """
    job = visible_job(user, public_id)
    attempts = job.attempts.order_by("-number")
    attempt = (attempts.filter(number=number) if number is not None else attempts).first()
    if attempt is None:
        if number is not None:
            raise NotFound(f"The job has no attempt {number}.")
        return JobAttempt(job=job, number=job.attempt_count + 1)
    attempt.job = job
    return attempt


def series_of(attempt: JobAttempt, names: list[str]) -> list[MetricSeries]:
    """These series with their points, in the order of `names`."""
    if attempt.pk is None:
        return []
    found = {series.name: series for series in MetricSeries.objects.filter(attempt=attempt, name__in=names)}
    return [found[name] for name in names if name in found]


def read_log(attempt: JobAttempt, stream: str, start: int, limit: int) -> folder.Chunk:
    """Bytes of stdout or stderr; a negative start counts from the end. Nothing yet: an empty chunk."""
    if stream not in STREAMS:
        raise InvalidInput({"stream": f"{stream!r} is no stream; use {' or '.join(STREAMS)}."})
    path = attempt.stdout_path if stream == "stdout" else attempt.stderr_path
    if not path or not attempt.folder:
        return folder.Chunk(b"", 0, 0, 0)
    try:
        return folder.read_range(
            Path(attempt.folder), str(PurePosixPath(path).relative_to(attempt.folder)), start, limit
        )
    except FileNotFoundError:
        return folder.Chunk(b"", 0, 0, 0)
    except (folder.Outside, OSError, ValueError):
        raise NotFound("The log cannot be read: it is not a plain file in the job's folder any more.") from None


def list_files(attempt: JobAttempt, path: str) -> folder.Listing:
    """A folder of the job. Raises NotFound for one that is not there or leads out."""
    if not attempt.folder:
        return folder.Listing([], False)
    try:
        return folder.list_inside(Path(attempt.folder), path)
    except (folder.Outside, OSError):
        raise NotFound(f"There is no folder {path[:200]!r} in the job's files.") from None


def open_file(attempt: JobAttempt, path: str) -> BinaryIO:
    """A file of the job, open for reading. Raises NotFound for one that is not there or leads out."""
    try:
        if not attempt.folder:
            raise FileNotFoundError
        return folder.open_inside(Path(attempt.folder), path)
    except (folder.Outside, OSError):
        raise NotFound(f"There is no file {path[:200]!r} in the job's files.") from None


def timeline(detail: JobDetail) -> list[tuple[str, datetime | None]]:
    """(state, when) of the latest attempt in order, as far as it has come."""
    job, attempt = detail.job, detail.attempt
    steps: list[tuple[str, datetime | None]] = [("queued", job.created_at)]
    if attempt is not None:
        steps += [("pending", attempt.submitted_at)] if attempt.submitted_at else []
        steps += [("running", attempt.started_at)] if attempt.started_at else []
    if job.state in FINAL:
        steps.append((job.state, job.ended_at))
    elif steps[-1][0] != job.state:
        steps.append((job.state, None))
    return steps


def latest_checkpoints(user: User, limit: int = 50) -> list[Checkpoint]:
    """The newest checkpoint of each of the latest jobs, to start from."""
    jobs = visible_jobs(user).filter(checkpoints__isnull=False).order_by("-id").values_list("pk", flat=True)
    pks = list(dict.fromkeys(jobs[: limit * 4]))[:limit]
    rows = Checkpoint.objects.filter(job__in=pks).select_related("job").order_by("job", F("step").desc(nulls_last=True))
    newest: dict[int, Checkpoint] = {}
    for row in rows[:2000]:
        newest.setdefault(row.job_id, row)
    return sorted(newest.values(), key=lambda row: -row.job_id)

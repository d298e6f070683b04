"""What the overview shows: for a person their jobs and hours, for an operator what is broken first."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal

from django.db.models import Count, Sum
from django.utils import timezone

from apps.accounts.hours import HoursLeft, hours_left
from apps.accounts.models import Project, User
from apps.accounts.permissions import visible_projects
from apps.inventory.models import Node
from apps.inventory.queries import ClusterSummary, cluster_summaries
from apps.jobs.models import Job, JobAttempt, MetricSeries
from apps.jobs.rights import visible_jobs
from apps.jobs.states import ACTIVE, FAILURES, FINAL, WAITING, JobState

SHOWN = 10
CAP = 10_000
MAX_PROJECTS = 20
STUCK_AFTER_S = 120


@dataclass
class Overview:
    """Counts are capped at 10,000. `trouble` holds sentences with a link each, the worst first."""

    running: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)
    running_count: int = 0
    waiting_count: int = 0
    failed_count: int = 0
    projects: list[tuple[Project, HoursLeft]] = field(default_factory=list)
    sparks: dict[int, str] = field(default_factory=dict)
    clusters: list[ClusterSummary] = field(default_factory=list)
    trouble: list[tuple[str, str]] = field(default_factory=list)
    cpu_hours_week: Decimal = Decimal(0)
    gpu_hours_week: Decimal = Decimal(0)


def overview(user: User) -> Overview:
    """Costs what it shows: the newest few of each, and capped counts."""
    now = timezone.now()
    day, week = now - timedelta(days=1), now - timedelta(days=7)
    jobs = visible_jobs(user).select_related("project", "cluster", "submitted_by").defer("script")
    mine = jobs if user.is_operator else jobs.filter(submitted_by=user)
    found = Overview(
        running=list(mine.filter(state__in=ACTIVE).order_by("-id")[:SHOWN]),
        waiting=list(mine.filter(state__in=WAITING).order_by("-id")[:SHOWN]),
        ended=list(mine.filter(state__in=FINAL).order_by("-id")[:SHOWN]),
        running_count=jobs.filter(state__in=ACTIVE).order_by()[:CAP].count(),
        waiting_count=jobs.filter(state__in=WAITING).order_by()[:CAP].count(),
        failed_count=jobs.filter(state__in=FAILURES, ended_at__gte=day).order_by()[:CAP].count(),
        clusters=cluster_summaries(),
    )
    used = jobs.filter(ended_at__gte=week).order_by().aggregate(cpu=Sum("cpu_hours"), gpu=Sum("gpu_hours"))
    found.cpu_hours_week, found.gpu_hours_week = used["cpu"] or Decimal(0), used["gpu"] or Decimal(0)
    if not user.is_operator:
        found.projects = [(p, hours_left(p)) for p in visible_projects(user).filter(is_active=True)[:MAX_PROJECTS]]
    found.sparks = _sparks([job.pk for job in found.running])
    found.trouble = _trouble(user, found)
    return found


def _trouble(user: User, found: Overview) -> list[tuple[str, str]]:
    trouble = []
    for summary in found.clusters:
        cluster = summary.cluster
        if summary.is_stale:
            error = f": {cluster.poll_error}" if user.is_operator and cluster.poll_error else ""
            trouble.append((f"{cluster} does not answer{error}", f"/clusters/{cluster.name}/"))
    if user.is_operator:
        bad = Node.objects.filter(state__in=["down", "drained", "draining", "unknown"], retired_at__isnull=True)
        for row in bad.values("cluster__name", "state").annotate(n=Count("id")).order_by("-n")[:5]:
            words = f"{row['n']:,} node{'s' if row['n'] > 1 else ''} of {row['cluster__name'] or 'no cluster'} "
            trouble.append((f"{words}{row['state']}", f"/nodes/?state={row['state']}"))
        before = timezone.now() - timedelta(seconds=STUCK_AFTER_S)
        stuck = JobAttempt.objects.filter(
            state__in=[JobState.DISPATCHING, JobState.UNKNOWN], created_at__lt=before
        ).count()
        if stuck:
            words = f"{stuck:,} job{'s' if stuck > 1 else ''} cannot be handed to a scheduler"
            trouble.append((words, "/jobs/?state=dispatching,unknown"))
    if found.failed_count:
        words = f"{found.failed_count:,} job{'s' if found.failed_count > 1 else ''} failed in the last 24 h"
        trouble.append((words, "/jobs/?state=failed"))
    return trouble


def _sparks(job_pks: list[int]) -> dict[int, str]:
    """The loss of each running job's latest attempt, as an SVG path."""
    rows = MetricSeries.objects.filter(attempt__job__in=job_pks, name="loss").order_by("attempt__number")
    return {row.attempt.job_id: spark_path(row.data.get("values", [])) for row in rows.select_related("attempt")}


def spark_path(values: list[float], points: int = 60) -> str:
    """`M0,0 L...` in a box of 100 x 20, the highest value on top; "" for less than two values."""
    if len(values) < 2:
        return ""
    step = max(1, len(values) // points)
    shown = values[::step]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    width = 100 / (len(shown) - 1) if len(shown) > 1 else 0
    places = (f"{n * width:.1f},{19 - 18 * (value - low) / span:.1f}" for n, value in enumerate(shown))
    return "M" + " L".join(places)

"""Questions about people, projects, hours and what was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from django.db.models import Q, QuerySet

from apps.accounts.models import Allocation, AllocationEntry, ApiToken, Membership, Notice, Project, User
from apps.accounts.permissions import roles_in, visible_project
from apps.core.errors import InvalidInput, NotFound
from apps.core.models import AuditEntry
from apps.core.permissions import is_allowed

PAGE_SIZE = 50


@dataclass(frozen=True)
class AllocationView:
    """Shares in percent of what was granted, for drawing; together at most 100."""

    allocation: Allocation
    spent_percent: Decimal
    reserved_percent: Decimal


@dataclass(frozen=True)
class ProjectDetail:
    project: Project
    members: list[Membership]
    allocations: list[AllocationView]
    entries: list[AllocationEntry]
    may: dict[str, bool]


def project_detail(user: User, name: str) -> ProjectDetail:
    """Raises NotFound. The latest twenty entries stand for the history."""
    project = visible_project(user, name)
    roles = roles_in(user, project)
    allocations = list(project.allocations.all())
    return ProjectDetail(
        project=project,
        members=list(project.memberships.select_related("user")),
        allocations=[_view(a) for a in allocations],
        entries=list(
            AllocationEntry.objects.filter(allocation__in=allocations).select_related("allocation").order_by("-id")[:20]
        ),
        may={verb: is_allowed(f"project.{verb}", roles) for verb in ("edit", "members")}
        | {"grant": is_allowed("allocation.grant", roles), "submit": is_allowed("job.submit", roles)},
    )


def _view(allocation: Allocation) -> AllocationView:
    spent = min(Decimal(100), 100 * allocation.spent / allocation.granted)
    return AllocationView(allocation, spent, min(100 - spent, 100 * allocation.reserved / allocation.granted))


def people(q: str = "", after: str = "") -> tuple[list[User], str | None]:
    """A page by name, and the name to go on after."""
    found = User.objects.order_by("username")
    if q:
        found = found.filter(
            Q(username__icontains=q) | Q(first_name__icontains=q) | Q(last_name__icontains=q) | Q(email__icontains=q)
        )
    if after:
        found = found.filter(username__gt=after)
    rows = list(found[: PAGE_SIZE + 1])
    return rows[:PAGE_SIZE], rows[PAGE_SIZE - 1].username if len(rows) > PAGE_SIZE else None


def person_by_id(public_id: str) -> User:
    person = User.objects.filter(public_id=public_id).first()
    if person is None:
        raise NotFound(f"There is no person {public_id}.")
    return person


def person_by_name(username: str, field: str) -> User:
    """Raises InvalidInput on `field`, for forms in which a name is typed."""
    person = User.objects.filter(username=username.strip()).first()
    if person is None:
        raise InvalidInput({field: f"There is nobody named {username[:60]!r}."})
    return person


def tokens_of(user: User) -> QuerySet[ApiToken]:
    return ApiToken.objects.filter(user=user).order_by("-created")


def notices_of(user: User, limit: int = 100) -> list[Notice]:
    return list(Notice.objects.filter(user=user).order_by("-created_at", "-id")[:limit])


@dataclass(frozen=True)
class AuditPage:
    rows: list[AuditEntry]
    next: int | None


def audit_entries(params: Mapping[str, str], *, size: int = PAGE_SIZE) -> AuditPage:
    """Newest first, narrowed by `person`, `verb`, `target`; `after` is the id to go on from."""
    rows = AuditEntry.objects.order_by("-id")
    for param, column in (("person", "actor_name"), ("verb", "verb"), ("target", "target_id")):
        if params.get(param):
            rows = rows.filter(**{column: params[param][:200].replace("\0", "")})
    after = params.get("after", "")
    if after:
        if not after.isdecimal() or len(after) > 18:
            raise InvalidInput({"after": "This is no entry to go on from; start at the first page."})
        rows = rows.filter(pk__lt=int(after))
    found = list(rows[: size + 1])
    return AuditPage(found[:size], found[size - 1].pk if len(found) > size else None)

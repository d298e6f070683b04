"""Verbs on projects: make, edit, members, grants of hours."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from django.db import transaction

from apps.accounts.models import Allocation, HourUnit, Membership, Project, Role, User
from apps.accounts.permissions import require_in
from apps.core.audit import record
from apps.core.clean import clean
from apps.core.errors import Conflict, InvalidInput
from apps.core.permissions import require, site_roles

MAX_HOURS = Decimal(10) ** 9


@transaction.atomic
def create_project(
    *, name: str, title: str = "", description: str = "", is_metered: bool = True, lead: User | None = None, by: User
) -> Project:
    require("project.create", site_roles(by))
    project = Project(name=name, title=title, description=description, is_metered=is_metered)
    clean(project)
    if Project.objects.filter(name__iexact=name).exists():
        raise InvalidInput({"name": f"There is a project named {name!r} already."})
    project.save()
    after = {"name": name, "is_metered": is_metered}
    if lead is not None:
        Membership.objects.create(project=project, user=lead, role=Role.LEAD)
        after["lead"] = lead.username
    record("project.create", by=by, target=project, after=after, project_id=project.pk)
    return project


@transaction.atomic
def edit_project(project: Project, *, title: str, description: str, is_active: bool, by: User) -> Project:
    require_in("project.edit", by, project)
    before = {"title": project.title, "description": project.description, "is_active": project.is_active}
    project.title, project.description, project.is_active = title, description, is_active
    clean(project)
    project.save()
    after = {"title": title, "description": description, "is_active": is_active}
    record("project.edit", by=by, target=project, before=before, after=after, project_id=project.pk)
    return project


@transaction.atomic
def set_member(project: Project, person: User, role: str, *, by: User) -> Membership:
    """Add the person, or change their role. The last lead stays one."""
    require_in("project.members", by, project)
    if role not in Role.values:
        raise InvalidInput({"role": f"{role!r} is no role; choose one of {', '.join(Role.values)}."})
    if not person.is_active:
        raise InvalidInput({"person": f"{person.username} is not active."})
    Project.objects.select_for_update().get(pk=project.pk)
    member = Membership.objects.filter(project=project, user=person).first()
    before = {"role": member.role} if member else {}
    if member is None:
        member = Membership(project=project, user=person)
    elif member.role == Role.LEAD and role != Role.LEAD:
        _require_another_lead(project, person)
    member.role = role
    member.save()
    after = {"person": person.username, "role": role}
    record("project.set_member", by=by, target=project, before=before, after=after, project_id=project.pk)
    return member


@transaction.atomic
def remove_member(project: Project, person: User, *, by: User) -> None:
    """Their jobs go on; who is no member any more cannot submit new ones."""
    require_in("project.members", by, project)
    Project.objects.select_for_update().get(pk=project.pk)
    member = Membership.objects.filter(project=project, user=person).first()
    if member is None:
        raise Conflict(f"{person.username} is no member of {project}.")
    if member.role == Role.LEAD:
        _require_another_lead(project, person)
    before = {"person": person.username, "role": member.role}
    member.delete()
    record("project.remove_member", by=by, target=project, before=before, project_id=project.pk)


@transaction.atomic
def grant_allocation(
    project: Project, *, unit: str, hours: Decimal, ends_at: datetime | None = None, note: str = "", by: User
) -> Allocation:
    require_in("allocation.grant", by, project)
    problems = {}
    if unit not in HourUnit.values:
        problems["unit"] = f"{unit!r} is no unit; choose one of {', '.join(HourUnit.values)}."
    if not hours.is_finite() or not 0 < hours <= MAX_HOURS:
        problems["hours"] = f"Grant more than 0 and at most {MAX_HOURS:,} hours."
    allocation = Allocation(project=project, unit=unit, granted=hours, ends_at=ends_at, note=note)
    if ends_at is not None and ends_at <= allocation.starts_at:
        problems["ends_at"] = "The end must lie in the future."
    if problems:
        raise InvalidInput(problems)
    clean(allocation)
    allocation.save()
    after = {"unit": unit, "hours": str(hours), "ends_at": ends_at, "note": note}
    record("allocation.grant", by=by, target=project, after=after, project_id=project.pk)
    return allocation


def _require_another_lead(project: Project, person: User) -> None:
    if not Membership.objects.filter(project=project, role=Role.LEAD).exclude(user=person).exists():
        raise Conflict(f"{person.username} is the only lead of {project}; make somebody else lead first.")

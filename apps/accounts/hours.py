"""Hours: reserved at submit, released and spent at the end, never more than granted however many submit at once.

Accounts know a `ref` (`<job id>:<attempt>`), not a job. Every entry is unique, so doing it twice is doing it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from apps.accounts.models import Allocation, AllocationEntry, EntryKind, HourUnit, Project
from apps.core.errors import OverLimit

ZERO = Decimal(0)


@dataclass(frozen=True)
class HoursLeft:
    """Hours that can still be reserved; None: the project is not metered, so there is no end to them."""

    gpu: Decimal | None
    cpu: Decimal | None


def hours_left(project: Project) -> HoursLeft:
    if not project.is_metered:
        return HoursLeft(None, None)
    left = {HourUnit.GPU: ZERO, HourUnit.CPU: ZERO}
    for allocation in _open_allocations(project):
        left[HourUnit(allocation.unit)] += allocation.left
    return HoursLeft(left[HourUnit.GPU], left[HourUnit.CPU])


def reserve_hours(project: Project, ref: str, *, gpu_hours: Decimal, cpu_hours: Decimal) -> None:
    """Set hours aside for one attempt, in the caller's transaction. Raises OverLimit, with what is left, in words."""
    reserve_hours_bulk(project, [(ref, gpu_hours, cpu_hours)])


def reserve_what_is_left(project: Project, ref: str, *, gpu_hours: Decimal, cpu_hours: Decimal) -> None:
    """For an attempt that somebody else has started, so that it cannot be refused: as much as there is, even nothing.

    An entry of zero hours is made where nothing is left, so that what it uses is spent all the same.
    """
    if not project.is_metered:
        return
    entries: list[AllocationEntry] = []
    locked = {a.pk: a for a in _open_allocations(project).order_by("pk").select_for_update()}
    ordered = [locked[pk] for pk in _open_allocations(project).values_list("pk", flat=True) if pk in locked]
    for unit, wanted in ((HourUnit.GPU, gpu_hours), (HourUnit.CPU, cpu_hours)):
        allocations = [a for a in ordered if a.unit == unit]
        drawn = _draw(allocations, ref, min(wanted, sum((a.left for a in allocations if a.left > 0), ZERO)))
        if not drawn and allocations and wanted > 0:
            drawn = [AllocationEntry(allocation=allocations[-1], kind=EntryKind.RESERVE, ref=ref, hours=ZERO)]
        entries += drawn
    AllocationEntry.objects.bulk_create(entries)
    Allocation.objects.bulk_update(ordered, ["reserved"])


def reserve_hours_bulk(project: Project, wants: Sequence[tuple[str, Decimal, Decimal]]) -> None:
    """`wants`: (ref, GPU-hours, CPU-hours) of each attempt; all or none. The allocations are locked until commit."""
    if not project.is_metered:
        return
    entries: list[AllocationEntry] = []
    # By primary key, so that two submits lock in the same order; spent in the order of their end.
    locked = {a.pk: a for a in _open_allocations(project).order_by("pk").select_for_update()}
    ordered = [locked[pk] for pk in _open_allocations(project).values_list("pk", flat=True) if pk in locked]
    for unit, place in ((HourUnit.GPU, 1), (HourUnit.CPU, 2)):
        allocations = [a for a in ordered if a.unit == unit]
        total = sum((want[place] for want in wants), ZERO)
        left = sum((a.left for a in allocations), ZERO)
        if total > left:
            raise OverLimit(
                f"This needs {total:,.2f} {unit.label} and project {project} has {left:,.2f} left. Ask for fewer nodes "
                "or less time, or ask an operator for a larger allocation."
            )
        for want in wants:
            entries += _draw(allocations, want[0], want[place])
    AllocationEntry.objects.bulk_create(entries)
    Allocation.objects.bulk_update(ordered, ["reserved"])


def _draw(allocations: Sequence[Allocation], ref: str, wanted: Decimal) -> list[AllocationEntry]:
    """From the allocation that ends first, then the next."""
    entries = []
    for allocation in allocations:
        if wanted <= 0:
            break
        part = min(wanted, allocation.left)
        if part > 0:
            allocation.reserved += part
            entries.append(AllocationEntry(allocation=allocation, kind=EntryKind.RESERVE, ref=ref, hours=part))
            wanted -= part
    return entries


@transaction.atomic
def settle_hours(ref: str, *, gpu_hours: Decimal, cpu_hours: Decimal) -> None:
    """Give back what was reserved for `ref` and spend what was used. A second call changes nothing.

    What was used beyond the reservation (a job that took long to die) goes on the last allocation it drew from.
    """
    pks = AllocationEntry.objects.filter(ref=ref, kind=EntryKind.RESERVE).values("allocation_id")
    locked = {a.pk: a for a in Allocation.objects.filter(pk__in=pks).order_by("pk").select_for_update()}
    entries = list(AllocationEntry.objects.filter(ref=ref).order_by("id"))
    if not locked or any(entry.kind == EntryKind.RELEASE for entry in entries):
        return
    new: list[AllocationEntry] = []
    for unit, used in ((HourUnit.GPU, gpu_hours), (HourUnit.CPU, cpu_hours)):
        reserved = [e for e in entries if locked[e.allocation_id].unit == unit]
        for place, entry in enumerate(reserved):
            allocation = locked[entry.allocation_id]
            part = used if place == len(reserved) - 1 else min(used, entry.hours)
            used -= part
            allocation.reserved -= entry.hours
            allocation.spent += part
            new.append(AllocationEntry(allocation=allocation, kind=EntryKind.RELEASE, ref=ref, hours=entry.hours))
            if part > 0:
                new.append(AllocationEntry(allocation=allocation, kind=EntryKind.SPEND, ref=ref, hours=part))
    AllocationEntry.objects.bulk_create(new)
    Allocation.objects.bulk_update(locked.values(), ["reserved", "spent"])


def _open_allocations(project: Project) -> QuerySet[Allocation]:
    now = timezone.now()
    return Allocation.objects.filter(project=project, starts_at__lte=now).filter(
        Q(ends_at__isnull=True) | Q(ends_at__gt=now)
    )

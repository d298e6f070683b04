"""Hours are never overspent, and every attempt is reserved, released and spent at most once."""

from __future__ import annotations

import threading
from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import connection, transaction
from django.utils import timezone

from apps.accounts.actions import hours_left, reserve_hours, reserve_hours_bulk, settle_hours
from apps.accounts.models import Allocation, AllocationEntry
from apps.core.errors import OverLimit

ZERO = Decimal(0)


def reserve(project, ref: str, gpu: str = "0", cpu: str = "0") -> None:
    with transaction.atomic():
        reserve_hours(project, ref, gpu_hours=Decimal(gpu), cpu_hours=Decimal(cpu))


def sums(project, unit: str) -> list[tuple[Decimal, Decimal]]:
    return list(Allocation.objects.filter(project=project, unit=unit).order_by("pk").values_list("reserved", "spent"))


def test_what_is_reserved_comes_back_and_what_is_used_is_spent(cast):
    reserve(cast.project, "job-a:1", gpu="8", cpu="64")
    assert hours_left(cast.project).gpu == 992
    settle_hours("job-a:1", gpu_hours=Decimal("2.5"), cpu_hours=Decimal(20))
    assert sums(cast.project, "gpu_hours") == [(ZERO, Decimal("2.5"))]
    assert sums(cast.project, "cpu_hours") == [(ZERO, Decimal(20))]
    assert hours_left(cast.project).gpu == Decimal("997.5")


def test_settling_twice_is_settling_once(cast):
    reserve(cast.project, "job-a:1", gpu="8")
    for used in ("2", "5"):
        settle_hours("job-a:1", gpu_hours=Decimal(used), cpu_hours=ZERO)
    assert sums(cast.project, "gpu_hours") == [(ZERO, Decimal(2))]
    assert AllocationEntry.objects.filter(ref="job-a:1").count() == 3


def test_settling_what_was_never_reserved_changes_nothing(cast):
    settle_hours("job-x:1", gpu_hours=Decimal(5), cpu_hours=Decimal(5))
    assert AllocationEntry.objects.count() == 0


def test_the_allocation_that_ends_first_is_used_first_and_one_job_may_draw_from_two(cast):
    soon = Allocation.objects.create(
        project=cast.project, unit="gpu_hours", granted=Decimal(10), ends_at=timezone.now() + timedelta(days=1)
    )
    reserve(cast.project, "job-a:1", gpu="15")
    soon.refresh_from_db()
    assert soon.reserved == 10
    assert hours_left(cast.project).gpu == 995
    settle_hours("job-a:1", gpu_hours=Decimal(12), cpu_hours=ZERO)
    soon.refresh_from_db()
    assert (soon.reserved, soon.spent) == (ZERO, Decimal(10))
    assert hours_left(cast.project).gpu == 998  # 2 of the 12 came from the other


def test_an_allocation_that_has_ended_or_not_begun_gives_nothing(cast):
    now = timezone.now()
    Allocation.objects.filter(unit="gpu_hours").update(ends_at=now - timedelta(seconds=1))
    Allocation.objects.create(
        project=cast.project, unit="gpu_hours", granted=Decimal(5), starts_at=now + timedelta(days=1)
    )
    assert hours_left(cast.project).gpu == 0
    with pytest.raises(OverLimit, match=r"This needs 1\.00 GPU-hours and project gpt has 0\.00 left"):
        reserve(cast.project, "job-a:1", gpu="1")


def test_an_overrun_is_spent_even_beyond_the_grant_and_leaves_nothing(cast):
    Allocation.objects.filter(unit="gpu_hours").update(granted=Decimal(10))
    reserve(cast.project, "job-a:1", gpu="10")
    settle_hours("job-a:1", gpu_hours=Decimal(12), cpu_hours=ZERO)
    assert sums(cast.project, "gpu_hours") == [(ZERO, Decimal(12))]
    assert hours_left(cast.project).gpu == 0


def test_a_batch_is_reserved_as_a_whole_or_not_at_all(cast):
    Allocation.objects.filter(unit="gpu_hours").update(granted=Decimal(10))
    with pytest.raises(OverLimit), transaction.atomic():
        reserve_hours_bulk(cast.project, [(f"job-{n}:1", Decimal(4), ZERO) for n in range(3)])
    assert AllocationEntry.objects.count() == 0
    assert sums(cast.project, "gpu_hours") == [(ZERO, ZERO)]


def test_a_project_that_is_not_metered_never_runs_out(cast):
    cast.project.is_metered = False
    cast.project.save()
    reserve(cast.project, "job-a:1", gpu="1000000")
    assert (hours_left(cast.project).gpu, AllocationEntry.objects.count()) == (None, 0)


@pytest.mark.django_db(transaction=True)
def test_500_at_once_get_exactly_what_there_is(cast):
    Allocation.objects.filter(unit="gpu_hours").update(granted=Decimal(137))
    taken: list[str] = []
    refused: list[str] = []

    def fifty(n: int) -> None:
        try:
            for k in range(50):
                ref = f"job-{n}-{k}:1"
                try:
                    reserve(cast.project, ref, gpu="1")
                    taken.append(ref)
                except OverLimit:
                    refused.append(ref)
        finally:
            connection.close()

    threads = [threading.Thread(target=fifty, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (137, 363)
    assert sums(cast.project, "gpu_hours") == [(Decimal(137), ZERO)]
    assert set(AllocationEntry.objects.values_list("ref", flat=True)) == set(taken)

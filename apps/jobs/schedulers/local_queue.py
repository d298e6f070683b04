"""Which waiting jobs start now: first in, first out, with backfill. Pure.

The first job that does not fit is promised the earliest moment at which, by the running jobs' time limits, enough is
free. A later job may start before it only when that cannot move that moment: it ends before it by its own limit, or it
needs only what is left over then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from apps.jobs.schedulers.local_runner import size_text


@dataclass(frozen=True)
class Amount:
    cpus: int = 0
    memory_bytes: int = 0
    accelerators: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.cpus + other.cpus,
            self.memory_bytes + other.memory_bytes,
            self.accelerators + other.accelerators,
        )

    def __sub__(self, other: Amount) -> Amount:
        return Amount(
            self.cpus - other.cpus,
            self.memory_bytes - other.memory_bytes,
            self.accelerators - other.accelerators,
        )

    def fits_in(self, free: Amount) -> bool:
        return (
            self.cpus <= free.cpus and self.memory_bytes <= free.memory_bytes and self.accelerators <= free.accelerators
        )


@dataclass(frozen=True)
class RunningJob:
    amount: Amount
    ends_at: float  # by its time limit, in seconds; math.inf without one


@dataclass(frozen=True)
class WaitingJob:
    job_id: int
    amount: Amount
    time_limit_s: float | None


@dataclass(frozen=True)
class Decision:
    start: tuple[int, ...]
    first_waiting: int | None
    reason: str  # why the first waiting job waits


def decide(total: Amount, running: Sequence[RunningJob], waiting: Sequence[WaitingJob], now: float) -> Decision:
    """`waiting` in their order in line; every one of them fits in `total`."""
    start: list[int] = []
    running = list(running)
    free = total
    for job in running:
        free -= job.amount
    line = list(waiting)
    while line and line[0].amount.fits_in(free):
        first = line.pop(0)
        start.append(first.job_id)
        running.append(RunningJob(first.amount, _end(first, now)))
        free -= first.amount
    if not line:
        return Decision(tuple(start), None, "")
    first = line[0]
    promised_at, spare = _promise(first.amount, free, running, now)
    for later in line[1:]:
        if free.cpus <= 0:
            break
        end = _end(later, now)
        outlasts = end > promised_at or math.isinf(end)
        if not later.amount.fits_in(free) or (outlasts and not later.amount.fits_in(spare)):
            continue
        start.append(later.job_id)
        free -= later.amount
        if outlasts:
            spare -= later.amount
    return Decision(tuple(start), first.job_id, f"first in line, waits for {shortage_text(first.amount, free, total)}")


def _end(job: WaitingJob, now: float) -> float:
    return math.inf if job.time_limit_s is None else now + job.time_limit_s


def _promise(need: Amount, free: Amount, running: Sequence[RunningJob], now: float) -> tuple[float, Amount]:
    """When `need` will be free at the latest, and what is left over then once it is taken."""
    promised_at = now
    for job in sorted(running, key=lambda job: job.ends_at):
        if need.fits_in(free):
            if job.ends_at > promised_at:
                break
        else:
            promised_at = max(now, job.ends_at)
        free += job.amount
    return promised_at, free - need


def amount_text(amount: Amount) -> str:
    """ "2 CPUs, 1 accelerator, 4 GiB of memory" """
    parts = [f"{amount.cpus} CPU{'s' if amount.cpus != 1 else ''}"]
    if amount.accelerators:
        parts.append(f"{amount.accelerators} accelerator{'s' if amount.accelerators != 1 else ''}")
    if amount.memory_bytes:
        parts.append(f"{size_text(amount.memory_bytes)} of memory")
    return ", ".join(parts)


def shortage_text(need: Amount, free: Amount, total: Amount) -> str:
    """ "2 CPUs: 0 of 2 free" for each kind that is short."""
    short = []
    if need.cpus > free.cpus:
        short.append(f"{need.cpus} CPU{'s' if need.cpus != 1 else ''}: {free.cpus} of {total.cpus} free")
    if need.accelerators > free.accelerators:
        kind = "accelerator" if need.accelerators == 1 else "accelerators"
        short.append(f"{need.accelerators} {kind}: {free.accelerators} of {total.accelerators} free")
    if need.memory_bytes > free.memory_bytes:
        sizes = f"{size_text(max(0, free.memory_bytes))} of {size_text(total.memory_bytes)} free"
        short.append(f"{size_text(need.memory_bytes)} of memory: {sizes}")
    return ", ".join(short)

"""What this machine has to give to jobs: CPUs, memory, accelerators."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from apps.jobs.schedulers.base import ObservedAccelerator

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    cpu_ids: tuple[int, ...]  # empty: jobs are not bound to CPUs
    cpus: int
    memory_bytes: int
    accelerators: tuple[ObservedAccelerator, ...]


def this_machine(cpus: int | None = None, memory_bytes: int | None = None) -> Machine:
    """What this process may use of the machine, or as many CPUs and as much memory as the caller says."""
    usable = tuple(sorted(os.sched_getaffinity(0)))
    count = cpus if cpus is not None else min(len(usable), _cgroup_cpus() or len(usable))
    return Machine(
        cpu_ids=usable if count <= len(usable) else (),
        cpus=count,
        memory_bytes=memory_bytes if memory_bytes is not None else _memory_bytes(),
        accelerators=nvidia_accelerators(),
    )


def _cgroup_cpus() -> int | None:
    """The CPU quota of a container, rounded down to at least 1; None when there is none."""
    text = _read("/sys/fs/cgroup/cpu.max")
    quota, _, period = text.partition(" ")
    return max(1, int(quota) // int(period)) if quota.isdigit() and period.isdigit() else None


def _memory_bytes() -> int:
    limit = _read("/sys/fs/cgroup/memory.max")
    total = int(psutil.virtual_memory().total)
    return min(total, int(limit)) if limit.isdigit() else total


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


@cache
def nvidia_accelerators() -> tuple[ObservedAccelerator, ...]:
    """The NVIDIA cards of this machine; none when it has no driver. Asked once a process: it takes up to a second."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.info("no NVIDIA accelerators: %s", error)
        return ()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found.append(
                ObservedAccelerator(
                    index=index,
                    uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                    model=_text(pynvml.nvmlDeviceGetName(handle)),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                )
            )
        return tuple(found)
    except pynvml.NVMLError as error:
        logger.warning("the NVIDIA accelerators could not be read: %s", error)
        return ()
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

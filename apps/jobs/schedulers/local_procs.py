"""Processes of this machine as the local scheduler needs them (Linux /proc).

Standard library only, since the runner uses it. A process is named by pid and start time together: a pid alone is soon
given to somebody else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Proc(NamedTuple):
    pid: int
    start_ticks: int  # since boot, in clock ticks


def boot_id() -> str:
    """Changes with every boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def find_proc(pid: int) -> Proc | None:
    """The process that has this pid now, None when there is none or only its zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return Proc(pid, int(fields[19]))


def is_running(proc: Proc) -> bool:
    return find_proc(proc.pid) == proc


def descendants(pid: int) -> list[Proc]:
    """All living descendants of `pid`, also those that daemonised if `pid` is a subreaper."""
    found: list[Proc] = []
    unseen = _children(pid)
    while unseen:
        child = unseen.pop()
        if (proc := find_proc(child)) is not None:
            found.append(proc)
            unseen += _children(child)
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                children += [int(child) for child in file.read().split()]
    return children


def marked(variable: str, uid: int) -> list[Proc]:
    """Processes of `uid` that were started with `variable` ("NAME=value") in their environment."""
    wanted = variable.encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        with suppress(OSError):
            proc = find_proc(pid)
            if proc is None or _real_uid(pid) != uid:
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(proc)
    return found


def _real_uid(pid: int) -> int:
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    raise ProcessLookupError(pid)


def resident_bytes(procs: Iterable[Proc]) -> int:
    """Resident memory, quick to read; memory that processes share counts once for each."""
    total = 0
    for proc in procs:
        with suppress(OSError), open(f"/proc/{proc.pid}/statm", "rb") as file:
            total += int(file.read().split()[1]) * _PAGE_BYTES
    return total


def proportional_bytes(procs: Iterable[Proc]) -> int:
    """Resident memory with shared memory divided among its users (PSS): exact, but slow to read."""
    total = 0
    for proc in procs:
        with suppress(OSError), open(f"/proc/{proc.pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
                    break
    return total


def send_signal(proc: Proc, number: int) -> None:
    """Signal exactly this process and never one that has been given its pid since. No error if it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        fd = os.pidfd_open(proc.pid)
        try:
            if is_running(proc):
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def kill_all(find: Callable[[], list[Proc]], timeout_s: float, reap: Callable[[], None] = lambda: None) -> bool:
    """Kill whatever `find` finds until it finds nothing more; False when some are still there after `timeout_s`.

    All are stopped before any is killed, so that a process that forks quickly cannot stay ahead of us.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        stopped: set[Proc] = set()
        while new := set(find()) - stopped:
            for proc in new:
                send_signal(proc, signal.SIGSTOP)
            stopped |= new
            if time.monotonic() > deadline:
                break
        for proc in stopped:
            send_signal(proc, signal.SIGKILL)
        reap()
        if not find():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


def become_subreaper() -> None:
    """From now on orphaned descendants become our children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """No set-uid program gives us or our children another identity any more."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent() -> None:
    """Be killed when the parent dies. Set after the last change of uid: that clears it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

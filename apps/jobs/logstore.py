"""What jobs on other machines have sent of their output: one folder an attempt, which we own and nobody else writes to.

    <state_dir>/joblogs/<job's public id>/<attempt's number>/{stdout.log,stderr.log,metrics.jsonl}

Whoever sends says at which offset the bytes belong, so that sending them again adds nothing and a gap is noticed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from django.conf import settings

from apps.jobs.models import JobAttempt

FILES: Final = {"stdout": "stdout.log", "stderr": "stderr.log", "metrics": "metrics.jsonl"}
# The sender stops at 64 MiB and then says in one line where the log goes on.
MAX_BYTES: Final = 64 * 1024**2 + 8192
# PostgreSQL may live on the same disk, and it stops when that is full.
MIN_FREE_BYTES: Final = 256 * 1024**2
_APPEND = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Gap(Exception):
    """Bytes before these have not come yet. `wanted`: the offset to go on from."""

    def __init__(self, wanted: int) -> None:
        super().__init__(f"bytes from {wanted} on are missing")
        self.wanted = wanted


class Full(Exception):
    """This stream has all it may have."""


class Paths(NamedTuple):
    folder: str
    stdout_path: str
    stderr_path: str
    metrics_path: str


def paths_for(attempt: JobAttempt) -> Paths:
    """Where this attempt's streams are kept, whether or not anything has come yet."""
    folder = settings.SWITCHYARD.state_dir.resolve() / "joblogs" / attempt.job.public_id / str(attempt.number)
    return Paths(str(folder), *(str(folder / name) for name in FILES.values()))


def is_kept_here(attempt: JobAttempt) -> bool:
    """Whether the attempt's output was sent to us, so that its folder here is not where the job ran."""
    return attempt.folder != "" and attempt.folder == paths_for(attempt).folder


def append(attempt: JobAttempt, stream: str, offset: int, data: bytes) -> int:
    """Put `data` at `offset` and return the offset to go on from. What is there already is never written again.

    Raises Gap, Full, or OSError as writing does; then nothing of `data` was added.
    """
    folder = Path(paths_for(attempt).folder)
    with _locked(folder):
        file = os.open(folder / FILES[stream], _APPEND, 0o600)
        try:
            size = os.fstat(file).st_size
            if offset > size:
                raise Gap(size)
            new = data[size - offset :]
            if size + len(new) > MAX_BYTES:
                raise Full
            return size + _write(file, size, new)
        finally:
            os.close(file)


def has_room() -> bool:
    """Whether the disk can take more. Asked before a post, so that logs never fill what the rest needs."""
    root = settings.SWITCHYARD.state_dir
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize >= MIN_FREE_BYTES


def _write(file: int, at: int, data: bytes) -> int:
    """All of it or nothing: a part of a post would be counted as if it were the whole."""
    done = 0
    try:
        while done < len(data):
            done += os.pwrite(file, data[done:], at + done)
    except OSError:
        os.ftruncate(file, at)
        raise
    return done


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder, made if need be, for one writer at a time. The folder itself is the lock: no file shows in it."""
    for part in (folder.parent.parent, folder.parent, folder):
        part.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)

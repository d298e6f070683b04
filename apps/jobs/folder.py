"""Reading a job's files without ever leaving its folder. No rows.

The folder belongs to whoever runs the job, who may swap any part of it for a link at any moment, while this process may
be root. So every step of a path is opened by itself, from the folder before it, without following links, and what is
opened is judged by its descriptor, not by its name.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO

MAX_ENTRIES = 1000
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe or a device without O_NONBLOCK may never return.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Outside(Exception):
    """The path leaves the job's folder, or names something that is not a plain file of the job's own."""


@dataclass(frozen=True)
class Entry:
    """`path` is relative to the job's folder; `size_bytes` of a folder is None."""

    name: str
    path: str
    is_folder: bool
    size_bytes: int | None
    modified_at: datetime


@dataclass(frozen=True)
class Listing:
    entries: list[Entry]
    truncated: bool


@dataclass(frozen=True)
class Chunk:
    """Bytes [start, end) of a file that had `size_bytes` when it was read."""

    data: bytes
    start: int
    end: int
    size_bytes: int


def open_inside(root: Path, relative: str) -> BinaryIO:
    """A plain file in `root`, opened for reading. Raises Outside, or OSError as open() does."""
    *folders, name = _parts(relative) or [""]
    if not name:
        raise Outside("a file's name is missing")
    with _folder(root, folders) as (folder, owner):
        try:
            fd = os.open(name, _OPEN_FILE, dir_fd=folder)
        except OSError as error:
            raise _translated(error, relative) from None
    status = os.fstat(fd)
    # A hard link to somebody else's file is a plain file too; it has another owner.
    if not stat.S_ISREG(status.st_mode) or (status.st_uid != owner and status.st_nlink > 1):
        os.close(fd)
        raise Outside(f"{relative} is not a plain file of the job")
    return os.fdopen(fd, "rb")


def read_range(root: Path, relative: str, start: int, limit: int) -> Chunk:
    """Up to `limit` bytes from `start` on; a negative start counts from the end. Past the end: no bytes."""
    with open_inside(root, relative) as file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size + start) if start < 0 else start
        data = b""
        if start < size:
            file.seek(start)
            data = file.read(limit)
    return Chunk(data, start, start + len(data), max(size, start + len(data)) if data else size)


def list_inside(root: Path, relative: str = "") -> Listing:
    """Folders first, then by name. Links and anything but files and folders are left out."""
    entries: list[Entry] = []
    truncated = False
    prefix = PurePosixPath(*_parts(relative)) if _parts(relative) else PurePosixPath()
    with _folder(root, _parts(relative)) as (folder, _), os.scandir(folder) as found:
        for item in found:
            if len(entries) >= MAX_ENTRIES:
                truncated = True
                break
            with contextlib.suppress(OSError):
                status = item.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                if is_folder or stat.S_ISREG(status.st_mode):
                    entries.append(
                        Entry(
                            name=item.name,
                            path=str(prefix / item.name),
                            is_folder=is_folder,
                            size_bytes=None if is_folder else status.st_size,
                            modified_at=datetime.fromtimestamp(status.st_mtime, UTC),
                        )
                    )
    return Listing(sorted(entries, key=lambda e: (not e.is_folder, e.name)), truncated)


def _parts(relative: str) -> list[str]:
    if "\0" in relative or relative.startswith("/"):
        raise Outside("the path must be relative to the job's folder")
    parts = [part for part in relative.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise Outside("the path must not go upward")
    return parts


@contextlib.contextmanager
def _folder(root: Path, parts: list[str]) -> Iterator[tuple[int, int]]:
    """The folder's descriptor and the owner of the root."""
    fd = os.open(root, _OPEN_FOLDER)
    try:
        owner = os.fstat(fd).st_uid
        for part in parts:
            try:
                inner = os.open(part, _OPEN_FOLDER, dir_fd=fd)
            except OSError as error:
                raise _translated(error, part) from None
            os.close(fd)
            fd = inner
        yield fd, owner
    finally:
        os.close(fd)


def _translated(error: OSError, name: str) -> Exception:
    """A link where a file or a folder should be is an attempt to leave."""
    if isinstance(error, NotADirectoryError) or error.errno == 40:  # ELOOP
        return Outside(f"{name} is a link or not what it should be")
    return error

"""Small files that survive a crash at any moment: written whole or not at all.

Standard library only, since the runner uses it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class DamagedFile(Exception):
    """The file is there but does not hold what was written: someone or something else has changed it."""


def write_bytes(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `content`. With `durable` it is on the disk when this returns, else only atomic.

    Never follows a link at `path`. Two writers of one path must exclude each other.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in `folder` outlive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_json(path: Path, value: dict[str, Any], *, durable: bool = True) -> None:
    """As `write_bytes`. Text keeps lone surrogates, so bytes that are not UTF-8 come back as they were."""
    write_bytes(path, json.dumps(value).encode("ascii"), durable=durable)


def read_json(path: Path) -> dict[str, Any] | None:
    """What `write_json` wrote, None when there is no file. Raises DamagedFile when it is not a JSON object."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except (IsADirectoryError, PermissionError) as error:
        raise DamagedFile(f"{path.name}: {error.strerror}") from error
    try:
        value = json.loads(content)
    except ValueError as error:
        raise DamagedFile(f"{path.name}: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path.name}: not a JSON object")
    return value

"""Bytes, durations and hours, read and written the way people of the field do. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

from apps.core.errors import InvalidInput

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
_MEMORY = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*$", re.IGNORECASE)
_FACTOR = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}
_TIME = re.compile(r"^\s*(?:(\d+)-)?(\d+)(?::(\d{1,2}))?(?::(\d{1,2}))?\s*$")
_SPOKEN = re.compile(r"(\d+)\s*(d|h|min|m|s)\b", re.IGNORECASE)
_SPOKEN_S = {"d": 86400, "h": 3600, "min": 60, "m": 60, "s": 1}
_HOUR = Decimal(3600)


def parse_memory(text: str, field: str = "memory") -> int:
    """`16G`, `512 MiB`, `1.5T` or a number of bytes -> bytes. Raises InvalidInput."""
    match = _MEMORY.match(text)
    if not match:
        raise InvalidInput({field: f"{text!r} is not an amount of memory; write it like 16G or 512M."})
    return int(Decimal(match[1]) * _FACTOR[match[2].upper()])


def parse_duration(text: str, field: str = "time_limit") -> int:
    """Slurm's `D-HH:MM:SS`, `HH:MM:SS`, `HH:MM` or minutes, and `2 h 30 min` -> seconds. Raises InvalidInput.

    Two numbers are hours and minutes, as people read them; Slurm's own `MM:SS` is not understood here.
    """
    spoken = _SPOKEN.findall(text)
    if spoken and not _SPOKEN.sub("", text).strip():
        return sum(int(n) * _SPOKEN_S[unit.lower()] for n, unit in spoken)
    match = _TIME.match(text)
    if not match:
        raise InvalidInput({field: f"{text!r} is not a duration; write it like 90 (minutes), 2:30:00 or 1-12:00:00."})
    days, first, second, third = (int(g) if g else 0 for g in match.groups())
    if match[1] is None and match[3] is None:
        return first * 60
    return days * 86400 + first * 3600 + second * 60 + third


def format_duration(seconds: float | None) -> str:
    """`2 d 03:14`, `3:14:07` or `14 s`; an em dash when not known."""
    if seconds is None:
        return "—"
    s = max(0, round(seconds))
    if s >= 86400:
        return f"{s // 86400} d {s % 86400 // 3600:02d}:{s % 3600 // 60:02d}"
    if s >= 60:
        return f"{s // 3600}:{s % 3600 // 60:02d}:{s % 60:02d}"
    return f"{s} s"


def format_bytes(size_bytes: int | None) -> str:
    """`1.5 GiB`; an em dash when not known."""
    if size_bytes is None:
        return "—"
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError


def hours(seconds: int | float | Decimal, count: int = 1) -> Decimal:
    """`seconds` on `count` units (GPUs or CPUs), in hours, rounded to the millionth."""
    return (Decimal(str(seconds)) * count / _HOUR).quantize(Decimal("0.000001"))

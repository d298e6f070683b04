"""The file a job appends its metrics to, one JSON object a line. Pure.

    {"step": 40, "name": "loss", "value": 2.41, "time": 1764590000.0}      step and time may be missing
    {"event": "checkpoint", "path": "checkpoint.npz", "step": 400}
    {"event": "progress", "share": 0.4, "text": "step 400 of 1,000"}

Whatever else is in there is skipped and counted: a bad line must cost nobody the good ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_LINE_BYTES = 64 * 1024
MAX_POINTS = 1200
_MAX_STEP = 2**62


@dataclass(frozen=True)
class Point:
    """`at` in seconds since 1970, as the job's clock has it."""

    name: str
    step: int | None
    value: float
    at: float | None


@dataclass(frozen=True)
class CheckpointLine:
    path: str
    step: int | None
    at: float | None


@dataclass(frozen=True)
class ProgressLine:
    """`share` from 0 to 1, or None when only the text is known."""

    share: float | None
    text: str


@dataclass
class Parsed:
    """`consumed_bytes`: where to read on. `skipped`: lines that were no use."""

    points: list[Point] = field(default_factory=list)
    checkpoints: list[CheckpointLine] = field(default_factory=list)
    progress: list[ProgressLine] = field(default_factory=list)
    consumed_bytes: int = 0
    skipped: int = 0


def parse(chunk: bytes) -> Parsed:
    """Whole lines only: the rest is left for the next read. A line without end beyond 64 KiB is skipped."""
    parsed = Parsed()
    end = chunk.rfind(b"\n") + 1
    if end == 0 and len(chunk) > MAX_LINE_BYTES:
        return Parsed(consumed_bytes=len(chunk), skipped=1)
    for line in chunk[:end].split(b"\n")[:-1]:
        if line.strip() and not _read_line(line, parsed):
            parsed.skipped += 1
    parsed.consumed_bytes = end
    return parsed


def _read_line(line: bytes, parsed: Parsed) -> bool:
    if len(line) > MAX_LINE_BYTES:
        return False
    try:
        data = json.loads(line, parse_constant=lambda _: math.nan)
    except (ValueError, RecursionError):
        return False
    if not isinstance(data, dict):
        return False
    event = data.get("event")
    if event is None:
        return _read_point(data, parsed)
    if event == "checkpoint":
        path = data.get("path")
        if not isinstance(path, str) or not 0 < len(path) <= 1000 or not path.isprintable():
            return False
        parsed.checkpoints.append(CheckpointLine(path, _step(data), _number(data.get("time"))))
        return True
    if event == "progress":
        share, text = _number(data.get("share")), data.get("text", "")
        if not isinstance(text, str) or (share is None and not text):
            return False
        clean = "".join(c for c in text if c.isprintable())[:100]
        parsed.progress.append(ProgressLine(None if share is None else min(1.0, max(0.0, share)), clean))
        return True
    return False


def _read_point(data: dict[str, Any], parsed: Parsed) -> bool:
    name, value = data.get("name"), _number(data.get("value"))
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable() or value is None:
        return False
    parsed.points.append(Point(name, _step(data), value, _number(data.get("time"))))
    return True


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _step(data: dict[str, Any]) -> int | None:
    step = data.get("step")
    if isinstance(step, float) and step.is_integer() and abs(step) < _MAX_STEP:
        step = int(step)
    return step if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < _MAX_STEP else None


class Series:
    """One metric as at most 1,200 points, however long the job runs: of each bucket the lowest and the highest stay.

    Points keep the order in which they came; a point without a step gets the next number.
    """

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._count = 0

    def add(self, points: Iterable[Point]) -> None:
        for point in points:
            self._count += 1
            self._steps.append(self._count if point.step is None else point.step)
            self._values.append(point.value)
            if len(self._steps) > 2 * MAX_POINTS:
                self._thin()
        if len(self._steps) > MAX_POINTS:
            self._thin()

    def columns(self) -> tuple[list[int], list[float]]:
        """Steps and values, of the same length."""
        return self._steps, self._values

    def to_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "values": self._values, "count": self._count}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Series:
        series = cls()
        series._steps, series._values = list(data["steps"]), list(data["values"])
        series._count = int(data["count"])
        return series

    def _thin(self) -> None:
        """Halve: of each four points in a row the lowest and the highest stay; the last point always does."""
        keep: list[int] = []
        for start in range(0, len(self._values), 4):
            bucket = range(start, min(start + 4, len(self._values)))
            low = min(bucket, key=self._values.__getitem__)
            high = max(bucket, key=self._values.__getitem__)
            keep += sorted({low, high})
        if keep[-1] != len(self._values) - 1:
            keep.append(len(self._values) - 1)
        self._steps = [self._steps[i] for i in keep]
        self._values = [self._values[i] for i in keep]

"""Measuring: medians, and ratios within one run, since absolute times say little about another machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def median_ms(action: Callable[[], Any], times: int = 15) -> float:
    """The median wall time of `action` in milliseconds, after two calls to warm up."""
    action()
    action()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        taken.append((time.perf_counter() - start) * 1000)
    return statistics.median(taken)


def report(what: str, value_ms: float, base_ms: float, limit: float | None) -> bool:
    """Print one line; whether the ratio keeps the limit."""
    ratio = value_ms / base_ms
    verdict = "" if limit is None else ("PASS" if ratio <= limit else f"over {limit:g}x")
    print(f"  {what:<70} {value_ms:9.2f} ms   {ratio:5.2f}x   {verdict}")
    return limit is None or ratio <= limit

"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float = 20, every_s: float = 0.05) -> T:
    """The first true value of `condition()`; an AssertionError when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{condition} has not become true within {timeout_s} s"
        time.sleep(every_s)

"""Tasks are named in three places: where they are woken, in the beat table, and where they are defined."""

from __future__ import annotations

import re

import pytest

from tests.harness import BASE_DIR
from workers.app import app
from workers.schedule import BEAT_SCHEDULE


@pytest.fixture(scope="module")
def registered() -> set[str]:
    app.loader.import_default_modules()
    return {name for name in app.tasks if not name.startswith("celery.")}


def test_every_woken_name_is_a_task(registered):
    woken = set()
    for path in (BASE_DIR / "apps").rglob("*.py"):
        woken |= set(re.findall(r'\bwake(?:_polls)?\(\s*"([^"]+)"', path.read_text()))
    assert len(woken) >= 4
    assert woken <= registered


def test_every_beat_entry_is_a_task_and_is_dropped_when_it_is_late(registered):
    assert {entry["task"] for entry in BEAT_SCHEDULE.values()} <= registered
    for name, entry in BEAT_SCHEDULE.items():
        assert entry["options"]["expires"] <= entry["schedule"], name


def test_no_task_is_without_a_waker(registered):
    """A task nobody wakes and beat does not call would be dead code."""
    text = "".join(path.read_text() for path in (BASE_DIR / "apps").rglob("*.py"))
    text += "".join(path.read_text() for path in (BASE_DIR / "workers").glob("*.py"))
    for name in registered:
        assert text.count(f'"{name}"') >= 2, name

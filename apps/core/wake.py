"""Start a task by name, after commit, from code that must not import tasks.

A wake is a nudge: a lost one costs a wait until the periodic task that does the same work. So a broker that is down
must neither fail nor delay the action: it is logged, at most every few seconds tried again, and forgotten.
"""

from __future__ import annotations

import logging
import time

from celery import current_app
from django.db import transaction

log = logging.getLogger(__name__)

_QUIET_AFTER_FAILURE_S = 5.0
_quiet_until = 0.0


def wake(task_name: str, *args: object, queue: str = "default", expires_s: int = 600) -> None:
    """Send task `task_name(*args)` once the running transaction has committed."""
    transaction.on_commit(lambda: _send(task_name, args, queue, expires_s))


def _send(task_name: str, args: tuple[object, ...], queue: str, expires_s: int) -> None:
    global _quiet_until
    if time.monotonic() < _quiet_until:
        return
    try:
        current_app.send_task(task_name, args=args, queue=queue, expires=expires_s, retry=False, ignore_result=True)
    except Exception as error:
        _quiet_until = time.monotonic() + _QUIET_AFTER_FAILURE_S
        log.warning("could not wake %s (%s); the periodic task will pick it up", task_name, type(error).__name__)

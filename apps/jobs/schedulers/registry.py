"""Which adapter speaks to which kind of cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from apps.jobs.schedulers.base import Scheduler, SchedulerError
from apps.jobs.schedulers.local import LocalScheduler
from apps.jobs.schedulers.slurm.scheduler import SlurmScheduler

_KINDS: dict[str, Callable[..., Scheduler]] = {"local": LocalScheduler, "slurm": SlurmScheduler}


def scheduler_for(kind: str, config: Mapping[str, Any]) -> Scheduler:
    """The adapter for a cluster of `kind`; `config` holds the arguments of its constructor, as JSON would.

    Asking again with the same arguments gives the same object, since adapters keep what they have read. Raises
    SchedulerError for an unknown kind or argument.
    """
    return _adapter(kind, json.dumps(dict(config), sort_keys=True))


@lru_cache(maxsize=64)
def _adapter(kind: str, config: str) -> Scheduler:
    if kind not in _KINDS:
        raise SchedulerError(f"there is no scheduler of kind {kind!r}; there is: {', '.join(sorted(_KINDS))}")
    try:
        return _KINDS[kind](**json.loads(config))
    except TypeError as error:
        raise SchedulerError(f"the {kind} scheduler cannot be set up: {error}") from error

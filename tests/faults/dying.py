"""A process that hands a job over and is killed at one step of it: `python -m tests.faults.dying STEP JOB_PK [KIND]`.

KIND is the scheduler's, `local` or `slurm`.

The kill is real (SIGKILL by the process itself), and what it leaves behind is whatever it left behind.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import django

django.setup()

from apps.jobs import dispatch  # noqa: E402
from apps.jobs.schedulers.local import LocalScheduler  # noqa: E402
from apps.jobs.schedulers.local_spool import Spool  # noqa: E402
from apps.jobs.schedulers.slurm.client import SlurmRest  # noqa: E402
from apps.jobs.schedulers.slurm.scheduler import SlurmScheduler  # noqa: E402


def die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(holder: Any, name: str) -> None:
    real = getattr(holder, name)

    def doing(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        die()

    setattr(holder, name, doing)


SCHEDULER: Any = SlurmScheduler if sys.argv[3:] == ["slurm"] else LocalScheduler
STEPS = {
    "after the claim": lambda: setattr(dispatch, "_hand_over", die),
    "before the submit": lambda: setattr(SCHEDULER, "submit_held", die),
    "half way through the submit": lambda: setattr(Spool, "save", die),
    "during the submit": lambda: die_after(*((SlurmRest, "post") if SCHEDULER is SlurmScheduler else (Spool, "add"))),
    "after the submit": lambda: die_after(SCHEDULER, "submit_held"),
    "after the record": lambda: setattr(dispatch, "_release", die),
    "before the release": lambda: setattr(SCHEDULER, "release", die),
    "after the release": lambda: die_after(SCHEDULER, "release"),
}

if __name__ == "__main__":
    STEPS[sys.argv[1]]()
    dispatch.dispatch_jobs([int(sys.argv[2])])

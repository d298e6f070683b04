"""A Submission as the body of a submit request, for every API version. Pure.

Nothing of it meets a shell: each value is a JSON value of its own, and the script is text that only the job's shell
reads. `argv` is never sent: it kills the slurmrestd of 22.05.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from apps.jobs.schedulers.base import Submission

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MIB = 1024**2


def submit_body(
    submission: Submission, version: int, *, folder: str, environment: Mapping[str, str], hold: bool = True
) -> dict[str, Any]:
    """`folder` is where the job starts and writes its output; `environment` is what every job of the site gets.

    Shapes differ by version: v0.0.38 takes plain numbers and a dictionary, later ones wrap numbers and take a list.
    """
    old = version < 39
    given = {"PATH": PATH, **environment, **submission.environment}
    job: dict[str, Any] = {
        "name": submission.name,
        "comment": submission.token,
        "hold": hold,
        "current_working_directory": folder,
        "standard_input": "/dev/null",
        "standard_output": f"{folder}/slurm-%j.out",
        "standard_error": f"{folder}/slurm-%j.err",
        "environment": given if old else [f"{name}={value}" for name, value in given.items()],
        "nodes": submission.nodes if old else str(submission.nodes),
        "tasks": submission.nodes,
        "tasks_per_node": 1,
        "cpus_per_task": submission.cpus_per_node,
    }
    if submission.time_limit_s is not None:
        job["time_limit"] = _number(math.ceil(submission.time_limit_s / 60), old)
    if submission.memory_bytes_per_node is not None:
        job["memory_per_node"] = _number(math.ceil(submission.memory_bytes_per_node / MIB), old)
    if submission.accelerators_per_node:
        count = submission.accelerators_per_node
        job |= {"gres": f"gpu:{count}"} if old else {"tres_per_node": f"gres/gpu:{count}"}
    for name in ("partition", "account", "qos", "reservation", "constraints"):
        value = getattr(submission, name)
        if value:
            job[name] = value
    # Where the script stands beside the job, every version takes it.
    return {"script": submission.script, "job": job}


def _number(value: int, old: bool) -> Any:
    return value if old else {"set": True, "infinite": False, "number": value}


def unaccepted(warnings: tuple[str, ...], accepted: tuple[str, ...]) -> list[str]:
    """The warnings that make a submit wrong: from v0.0.39 on, a misspelt or unknown option is only a warning.

    That a held job is held is told as a warning too. `accepted`: texts a site has said it knows.
    """
    return [
        text for text in warnings if "held state" not in text and not any(known and known in text for known in accepted)
    ]

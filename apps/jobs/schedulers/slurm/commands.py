"""Slurm's own commands, run as a person by that person's token: for what slurmrestd cannot do, or does too slowly."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from apps.jobs.schedulers.base import SchedulerError, SchedulerUnavailable
from apps.jobs.schedulers.slurm.tokens import Tokens

TIMEOUT_S = 30.0
_UNIT, _RECORD = "\x1f", "\x1e"
# squeue's letters, and the names that slurmrestd has for the same.
_SQUEUE = {
    "A": "job_id",
    "F": "array_job_id",
    "K": "array_task",
    "T": "job_state",
    "r": "state_reason",
    "u": "user_name",
    "a": "account",
    "P": "partition",
    "q": "qos",
    "Q": "priority",
    "l": "time_limit",
    "S": "start_time",
    "V": "submit_time",
    "e": "end_time",
    "N": "nodes",
    "D": "node_count",
    "C": "cpus",
    "b": "tres_per_node",
    "Z": "current_working_directory",
    "k": "comment",
    "j": "name",
}


class CommandFailed(SchedulerError):
    """The command ran and said no; the text is what it said."""


class SlurmCommands:
    """`bin_dir` holds squeue, scontrol and sbatch; None: where PATH finds them. `conf` is their slurm.conf."""

    def __init__(self, tokens: Tokens, *, conf: str | None = None, bin_dir: str | None = None) -> None:
        self._tokens = tokens
        self._conf = conf
        self._bin_dir = bin_dir

    def are_there(self) -> bool:
        return all(self._path(name) for name in ("squeue", "scontrol"))

    def squeue(self, user: str) -> list[dict[str, Any]]:
        """Every job the controller knows, ended ones too, as records that `translate.job` reads.

        One text of some hundred bytes a job: a hundredth of what the same list costs over REST.
        """
        fields = _UNIT.join(f"%{letter}" for letter in _SQUEUE)
        output = self.run(user, ["squeue", "--noheader", "--all", "-t", "all", "-o", f"{_RECORD}{fields}"])
        return parse_squeue(output)

    def update_nodes(self, user: str, names: str, values: dict[str, str]) -> None:
        """`scontrol update`; raises CommandFailed when it is refused."""
        # scontrol takes a quotation mark at a value's end for its own; one that is followed by a space it leaves.
        told = {name: f"{value} " if value.endswith(('"', "'")) else value for name, value in values.items()}
        self.run(user, ["scontrol", "update", f"NodeName={names}", *(f"{k}={v}" for k, v in told.items())])

    def test_submit(self, user: str, arguments: Sequence[str], script: str) -> str:
        """`sbatch --test-only`: what it says of when and where the job would start. Raises CommandFailed."""
        return self.run(user, ["sbatch", "--test-only", *arguments], script)

    def run(self, user: str, command: Sequence[str], text: str = "") -> str:
        program = self._path(command[0])
        if program is None:
            raise SchedulerUnavailable(f"{command[0]} is not installed where this worker runs")
        token = self._tokens.token(user)
        env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
        env |= {"SLURM_CONF": self._conf} if self._conf else {}
        env |= {"SLURM_JWT": token} if token else {}
        try:
            done = subprocess.run(
                [program, *command[1:]],
                env=env,
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            raise SchedulerUnavailable(f"{command[0]} did not answer within {TIMEOUT_S:g} s") from None
        except OSError as error:
            raise SchedulerUnavailable(f"{command[0]} cannot be run: {error.strerror}") from None
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())[:500]
            words = said.lower()
            if "unable to contact" in words or "connect failure" in words or "timed out" in words:
                raise SchedulerUnavailable(f"{command[0]}: {said}")
            raise CommandFailed(f"{command[0]}: {said or f'exit code {done.returncode}'}")
        # sbatch says when the job would start on its error stream.
        return done.stdout or done.stderr

    def _path(self, name: str) -> str | None:
        if self._bin_dir is not None:
            path = os.path.join(self._bin_dir, name)
            return path if os.access(path, os.X_OK) else None
        return shutil.which(name)


def parse_squeue(output: str) -> list[dict[str, Any]]:
    """squeue's text to records. A record that is cut off or has a separator in a name is left out."""
    records = []
    for text in output.split(_RECORD)[1:]:
        values = text.rstrip("\n").split(_UNIT)
        if len(values) != len(_SQUEUE):
            continue
        record: dict[str, Any] = dict(zip(_SQUEUE.values(), values, strict=True))
        for name, value in record.items():
            if value in {"N/A", "(null)", "n/a"}:
                record[name] = ""
        task = record.pop("array_task")
        if not task:
            record["array_job_id"] = None
        elif task.isdigit():
            record["array_task_id"] = task
        else:
            record["array_task_string"] = task
        records.append(record)
    return records

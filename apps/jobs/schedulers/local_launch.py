"""Starting a job's runner, and finding out what became of it."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apps.jobs.schedulers import local_procs, local_runner
from apps.jobs.schedulers.local_files import DamagedFile, read_json, write_bytes, write_json
from apps.jobs.schedulers.local_runner import Plan, Result
from apps.jobs.schedulers.local_spool import SpoolJob
from apps.jobs.states import JobState

logger = logging.getLogger(__name__)

LAUNCHES = 3
MARKER = "SWITCHYARD_JOB"
_LEFTOVERS_TIMEOUT_S = 2.0


def job_environment(job: SpoolJob, folder: Path, node_name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Everything a job's environment holds; nothing of ours is inherited. What is set last cannot be overridden."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(folder),
        "USER": job.unix_user or "",
        "LOGNAME": job.unix_user or "",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": str(job.cpus),
        **given,
        MARKER: str(job.id),
        "SWITCHYARD_JOB_ID": str(job.id),
        "SWITCHYARD_FOLDER": str(folder),
        "SWITCHYARD_METRICS": str(folder / "metrics.jsonl"),
        "SWITCHYARD_NODES": node_name,
        "SWITCHYARD_CPUS": str(job.cpus),
        "CUDA_VISIBLE_DEVICES": ",".join(card["uuid"] for card in job.cards),
    }


def make_plan(job: SpoolJob, submission: Mapping[str, Any], folder: Path, node_name: str, grace_s: float) -> Plan:
    return Plan(
        external_id=str(job.id),
        script=submission["script"],
        environment=job_environment(job, folder, node_name, submission["environment"]),
        folder=str(folder),
        working_dir=job.working_dir or str(folder),
        uid=job.uid,
        gid=job.gid,
        cpu_ids=job.cpu_ids,
        time_limit_s=job.time_limit_s,
        memory_limit_bytes=job.memory_bytes,
        grace_s=grace_s,
    )


def launch(run_folder: Path, plan: Plan, python: str) -> subprocess.Popen[bytes]:
    """Start the runner. The process returned only detaches it and ends within moments: wait for it.

    The runner inherits a locked file: until runner.json is there, the lock tells that one is on its way.
    """
    run_folder.mkdir(mode=0o700, exist_ok=True)
    write_json(run_folder / "plan.json", plan.__dict__, durable=False)
    write = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    lock = os.open(run_folder / "alive", write, 0o600)
    try:
        output = os.open(run_folder / "runner.log", write | os.O_APPEND, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return subprocess.Popen(
                [python, "-I", "-S", local_runner.__file__, str(run_folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={},
                cwd="/",
                pass_fds=(lock,),
                start_new_session=True,
            )
        finally:
            os.close(output)
    finally:
        os.close(lock)


def ask_to_end(run_folder: Path, reason: str) -> None:
    """Have the runner end the job; it looks every quarter of a second."""
    run_folder.mkdir(mode=0o700, exist_ok=True)
    write_bytes(run_folder / "cancel", reason.encode("utf-8", "replace"))


class RunWatch:
    """What became of the runners. Remembers who they are, so that looking again costs one small read."""

    def __init__(self) -> None:
        self._runners: dict[int, tuple[str, local_procs.Proc]] = {}
        self._boot_id = local_procs.boot_id()

    def result(self, job: SpoolJob, run_folder: Path) -> Result | None:
        """How the job ended; None while it runs, or is to be launched again (`needs_launch`)."""
        if (result := self._read_result(run_folder)) is not None or self._is_alive(job, run_folder):
            return result
        # The runner may have written its result and ended between the two looks.
        if (result := self._read_result(run_folder)) is not None or self.needs_launch(job, run_folder):
            return result
        return self._result_of_dead_runner(job, run_folder)

    def forget(self, job: SpoolJob) -> None:
        self._runners.pop(job.id, None)

    def needs_launch(self, job: SpoolJob, run_folder: Path) -> bool:
        """No runner has ever come up, so the job has surely not started."""
        return (
            job.launches < LAUNCHES
            and local_runner.cancel_reason(run_folder) is None
            and self._runner(job, run_folder) is None
            and not _is_locked(run_folder / "alive")
        )

    def _read_result(self, run_folder: Path) -> Result | None:
        try:
            data = read_json(run_folder / "result.json")
            return Result(**data) if data is not None and JobState(data["state"]) else None
        except (DamagedFile, TypeError, ValueError, KeyError) as error:
            logger.error("%s: damaged result: %s", run_folder, error)
            return None

    def _runner(self, job: SpoolJob, run_folder: Path) -> tuple[str, local_procs.Proc] | None:
        if job.id not in self._runners:
            try:
                data = read_json(run_folder / "runner.json")
                if data is None:
                    return None
                self._runners[job.id] = (data["boot_id"], local_procs.Proc(data["pid"], data["start_ticks"]))
            except (DamagedFile, KeyError, TypeError) as error:
                logger.error("%s: damaged runner.json: %s", run_folder, error)
                return "", local_procs.Proc(0, 0)
        return self._runners[job.id]

    def _is_alive(self, job: SpoolJob, run_folder: Path) -> bool:
        runner = self._runner(job, run_folder)
        if runner is None or not runner[0]:
            return _is_locked(run_folder / "alive")
        return runner[0] == self._boot_id and local_procs.is_running(runner[1])

    def _result_of_dead_runner(self, job: SpoolJob, run_folder: Path) -> Result:
        now = time.time()
        started_at = job.started_at or now
        runner = self._runner(job, run_folder)
        if runner is None:
            cancelled = local_runner.cancel_reason(run_folder)
            if cancelled is not None:
                return Result("cancelled", local_runner.cancelled_text(cancelled), None, None, started_at, now)
            reason = f"the job's runner could not be started ({_last_line(run_folder / 'runner.log')})"
            return Result("failed", reason, None, None, started_at, now)
        if runner[0] and runner[0] != self._boot_id:
            return Result("node_failed", "the machine was restarted while the job ran", None, None, started_at, now)
        kill_leftovers(job)
        reason = "the job's runner was killed, so how the job ended is not known; what was left of it has been ended"
        return Result("lost", reason, None, None, started_at, now)


def kill_leftovers(job: SpoolJob) -> None:
    """End what a job whose runner is gone has left behind, found by the mark in its environment."""
    uid = job.uid if job.uid is not None else os.getuid()
    ended = local_procs.kill_all(lambda: local_procs.marked(f"{MARKER}={job.id}", uid), _LEFTOVERS_TIMEOUT_S)
    if not ended:
        logger.error("job %s: processes of it are left and cannot be killed", job.id)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "it said nothing"

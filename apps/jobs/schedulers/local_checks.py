"""What the local scheduler refuses before a job exists, in sentences for the job's owner."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from apps.jobs.schedulers.base import ObservedPartition, RunAs, Submission, SubmitRefused
from apps.jobs.schedulers.local_machine import Machine
from apps.jobs.schedulers.local_runner import size_text


@dataclass(frozen=True)
class JobUser:
    """As whom the processes run. `uid` and `gid` None: as the user this process already is."""

    name: str
    uid: int | None
    gid: int | None


def job_user(run_as: RunAs, *, allow_same_user: bool) -> JobUser:
    """The identity a job gets. Raises SubmitRefused when it would own the product, or cannot be given."""
    own_uid = os.geteuid()
    if own_uid != 0:
        return _same_user(run_as, own_uid, allow_same_user)
    uid, gid = run_as.uid, run_as.gid
    if uid is None or gid is None:
        try:
            entry = pwd.getpwnam(run_as.unix_user) if uid is None else pwd.getpwuid(uid)
        except KeyError:
            raise SubmitRefused(f"there is no user {run_as.unix_user!r} on this machine") from None
        uid, gid = (entry.pw_uid if uid is None else uid), (entry.pw_gid if gid is None else gid)
    if uid <= 0 or gid <= 0:
        raise SubmitRefused("jobs may not run as root on this cluster")
    return JobUser(run_as.unix_user, uid, gid)


def _same_user(run_as: RunAs, own_uid: int, allow_same_user: bool) -> JobUser:
    name = user_name(own_uid)
    if not allow_same_user:
        raise SubmitRefused(
            f"this cluster would have to run jobs as {name}, the user that runs Switchyard itself, "
            "and that has not been allowed"
        )
    if run_as.uid is not None and run_as.uid != own_uid:
        raise SubmitRefused(f"this cluster can run jobs as {name} only, not as {run_as.unix_user}")
    return JobUser(name, None, None)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def check_submission(
    submission: Submission, user: JobUser, machine: Machine, partitions: tuple[ObservedPartition, ...], jobs_dir: Path
) -> ObservedPartition:
    """The partition the job goes to. Raises SubmitRefused naming the limit that is in the way."""
    partition = _partition(submission.partition, partitions)
    if submission.nodes != 1:
        raise SubmitRefused(f"this cluster is one machine: {submission.nodes} nodes were asked for, 1 is the limit")
    _check_amount("CPU", submission.cpus_per_node, machine.cpus, least=1)
    _check_amount("accelerator", submission.accelerators_per_node, len(machine.accelerators), least=0)
    memory = submission.memory_bytes_per_node
    if memory is not None and not 0 < memory <= machine.memory_bytes:
        raise SubmitRefused(f"{size_text(memory)} of memory asked for, the limit is {size_text(machine.memory_bytes)}")
    limit, most = submission.time_limit_s, partition.max_time_s
    if limit is not None and limit <= 0:
        raise SubmitRefused(f"the time limit must be more than 0 s, not {limit} s")
    if limit is not None and most is not None and limit > most:
        raise SubmitRefused(f"time limit of {limit} s asked for, the limit of partition {partition.name} is {most} s")
    if not submission.script.startswith("#!"):
        raise SubmitRefused('the script must start with "#!" and the program that runs it, e.g. "#!/bin/bash"')
    for name, value in submission.environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise SubmitRefused(f"the environment variable {name!r} is not one a process can have")
    obstacle = obstacle_on_the_way(jobs_dir, user)
    if submission.working_dir is not None:
        obstacle = obstacle or obstacle_on_the_way(Path(submission.working_dir), user)
    if obstacle:
        raise SubmitRefused(obstacle)
    return partition


def _partition(name: str | None, partitions: tuple[ObservedPartition, ...]) -> ObservedPartition:
    for partition in partitions:
        if partition.name == name or (name is None and partition.is_default):
            return partition
    known = ", ".join(partition.name for partition in partitions)
    raise SubmitRefused(f"there is no partition {name!r} on this cluster; there is: {known}")


def _check_amount(noun: str, asked: int, most: int, *, least: int) -> None:
    if not least <= asked <= most:
        plural = "" if asked == 1 else "s"
        raise SubmitRefused(f"{asked} {noun}{plural} asked for, this machine has {most}")


def obstacle_on_the_way(folder: Path, user: JobUser) -> str | None:
    """Why `user` cannot enter `folder`, in one sentence; None when it can. Access control lists are not looked at."""
    if not folder.is_absolute():
        return f"the working folder {folder} is not an absolute path"
    try:
        real = folder.resolve(strict=True)
        for step in (*reversed(real.parents), real):
            status = step.stat()
            if not step.is_dir():
                return f"{folder} is not a folder"
            if user.uid is None:
                allowed = os.access(step, os.X_OK)
            elif status.st_uid == user.uid:
                allowed = bool(status.st_mode & 0o100)
            else:
                allowed = bool(status.st_mode & (0o010 if status.st_gid == user.gid else 0o001))
            if not allowed:
                return f"user {user.name} cannot enter {folder}: no right to pass through {step}"
    except FileNotFoundError:
        return f"the folder {folder} does not exist"
    except (OSError, RuntimeError) as error:
        return f"the folder {folder} cannot be used: {error}"
    return None

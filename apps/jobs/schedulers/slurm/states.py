"""Slurm's words for jobs' states and reasons, to ours. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from apps.jobs.states import JobState

_BASES: Final = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "COMPLETED": JobState.COMPLETED,
    "CANCELLED": JobState.CANCELLED,
    "FAILED": JobState.FAILED,
    "TIMEOUT": JobState.TIMED_OUT,
    "NODE_FAIL": JobState.NODE_FAILED,
    "PREEMPTED": JobState.PREEMPTED,
    "BOOT_FAIL": JobState.BOOT_FAILED,
    "DEADLINE": JobState.DEADLINE,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
}
# Flags that may stand alone, in the commands' output and in replies of old releases.
_ALONE: Final = {
    "COMPLETING": JobState.COMPLETING,
    "CONFIGURING": JobState.RUNNING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "STAGE_OUT": JobState.COMPLETING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "REVOKED": JobState.CANCELLED,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "POWER_UP_NODE": JobState.RUNNING,
    "UPDATE_DB": JobState.PENDING,
    "EXPEDITING": JobState.PENDING,
}


@dataclass(frozen=True)
class JobStateText:
    """`state` None: a word nobody knows stands where the state should be."""

    state: JobState | None
    flags: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def job_state(raw: Any) -> JobStateText:
    """`"RUNNING"`, `["COMPLETED", "COMPLETING"]`, `"CANCELLED by 1001"`, `"RUNNING+COMPLETING"`."""
    text = raw if isinstance(raw, (list, tuple)) else re.split(r"[+,]", str(raw or ""))
    words = [str(word).strip().split(" ")[0].upper() for word in text]
    bases = [word for word in words if word in _BASES]
    flags = tuple(word for word in words if word in _ALONE)
    unknown = tuple(word for word in words if word and word not in _BASES and word not in _ALONE)
    if bases:
        state = _BASES[bases[0]]
        if state == JobState.RUNNING and "COMPLETING" in flags:
            state = JobState.COMPLETING
        return JobStateText(state, flags + (("SUSPENDED",) if bases[0] == "SUSPENDED" else ()), unknown)
    return JobStateText(_ALONE[flags[0]] if flags else None, flags, unknown)


_HELD: Final = frozenset({"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "ReqHeld"})

_WAITS: Final = {
    "Resources": "waits for free nodes",
    "Priority": "waits behind jobs of higher priority",
    "Dependency": "waits for jobs it depends on",
    "DependencyNeverSatisfied": "can never start: a job it depends on has ended otherwise than it asks for",
    "BeginTime": "waits for its start time",
    "JobHeldUser": "held by its owner",
    "JobHeldAdmin": "held by an administrator",
    "JobHoldMaxRequeue": "held: it was requeued too often",
    "Licenses": "waits for licences",
    "ReqNodeNotAvail": "waits for nodes that are down, drained or reserved",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": "waits: its reservation was deleted",
    "PartitionDown": "waits: the partition is down",
    "PartitionInactive": "waits: the partition is inactive",
    "PartitionNodeLimit": "asks for more nodes than the partition gives one job",
    "PartitionTimeLimit": "asks for more time than the partition gives one job",
    "JobArrayTaskLimit": "waits: as many of the array's tasks run as may run at a time",
    "BadConstraints": "asks for features that no node has",
    "AssocMaxJobsLimit": "waits: its account has as many jobs running as it may",
    "MaxGRESPerAccount": "waits: its account has as many GPUs as it may",
    "QOSMaxGRESPerUser": "waits: its owner has as many GPUs as the QOS allows",
    "QOSMaxJobsPerUserLimit": "waits: its owner has as many jobs running as the QOS allows",
    "QOSGrpGRES": "waits: all who use this QOS have as many GPUs as it allows",
    "AssocGrpGRES": "waits: its account has as many GPUs as it may",
    "Cleaning": "waits for the last run's nodes to be tidied up",
    "NodeDown": "waits: a node it needs is down",
    "AccountNotAllowed": "waits: its account may not use the partition",
    "QOSNotAllowed": "waits: its QOS may not be used here",
    "InvalidAccount": "waits: its account is not valid",
    "InvalidQOS": "waits: its QOS is not valid",
    "None": "in line",
    "": "in line",
}

_ENDS: Final = {
    JobState.COMPLETED: "exit code 0",
    JobState.TIMED_OUT: "its time limit was reached",
    JobState.NODE_FAILED: "a node of it failed",
    JobState.PREEMPTED: "ended to make room for a job of higher priority",
    JobState.BOOT_FAILED: "a node of it did not boot",
    JobState.DEADLINE: "its deadline passed",
    JobState.OUT_OF_MEMORY: "it needed more memory than it was given",
    JobState.CANCELLED: "cancelled",
}
_FAILED: Final = {
    "JobLaunchFailure": "ended by the node's Slurm daemon, as when it needs more memory than it was given",
    "RaisedSignal": "ended by a signal",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
}


def is_held(reason: str) -> bool:
    return reason in _HELD


def waiting_text(reason: str) -> str:
    """One sentence for people; Slurm's own word stays in brackets where it has one."""
    word = reason.partition(",")[0].strip()
    known = _WAITS.get(word)
    if known is None:
        return f"waits: {reason}"
    return known if word in {"", "None"} else f"{known} ({word})"


def ending_text(state: JobState, reason: str, exit_code: int | None, exit_signal: int | None) -> str:
    if state != JobState.FAILED:
        return _ENDS.get(state, state.replace("_", " "))
    if reason in _FAILED:
        return f"{_FAILED[reason]} ({reason})"
    if exit_signal is not None:
        return f"killed by signal {exit_signal}"
    if exit_code is not None:
        return f"exit code {exit_code}" + (": a command was not found" if exit_code == 127 else "")
    return reason if reason not in {"", "None"} else "failed"


def state_text(flags: Sequence[str]) -> str:
    """What a running job's flags say."""
    if "SUSPENDED" in flags or "STOPPED" in flags:
        return "suspended"
    if "CONFIGURING" in flags or "POWER_UP_NODE" in flags:
        return "its nodes are being made ready"
    return "running"

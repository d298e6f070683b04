"""Slurm's records of jobs, nodes and partitions, to ours. Pure.

One function for every shape: releases rename fields and wrap numbers, but no name changes its meaning, so each value
is looked for under all its names. What a record says that cannot be read is told to `doubts` and never breaks a poll.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from apps.jobs.schedulers.base import (
    AllocatedAccelerator,
    ArrayPart,
    ObservedJob,
    ObservedNode,
    ObservedPartition,
)
from apps.jobs.schedulers.slurm import states, text
from apps.jobs.states import FINAL, JobState

MIB: Final = 1024**2
TOKEN: Final = re.compile(r"\bsw-[A-Za-z0-9]+-[A-Za-z0-9]+\b")

Record = Mapping[str, Any]


class Doubts(Counter[str]):
    """What could not be understood, counted: `job state WHATEVER` -> 3."""

    def note(self, what: str) -> None:
        if len(self) < 200 or what in self:
            self[what[:200]] += 1


# -- jobs of the controller -------------------------------------------------------------------------------------------


def job(record: Record, doubts: Doubts) -> ObservedJob | None:
    """A job of `/slurm/.../job(s)` or of squeue; None, and a doubt, for a record without an id or a known state."""
    external_id = text.integer(record.get("job_id"))
    found = states.job_state(record.get("job_state"))
    for word in found.unknown:
        doubts.note(f"job state {word}")
    if external_id is None or found.state is None:
        doubts.note(f"job record without {'an id' if external_id is None else 'a known state'}")
        return None
    slurm_reason = str(record.get("state_reason") or "")
    state = found.state
    exit_code, exit_signal = exit_status(record.get("exit_code")) if state in FINAL else (None, None)
    if state == JobState.COMPLETED:
        exit_code, exit_signal = exit_code or 0, None
    started_at = text.instant(record.get("start_time"))
    names = _hosts(_nodes_text(record), doubts)
    waits = state == JobState.PENDING
    held = waits and (record.get("hold") is True or states.is_held(slurm_reason) or _priority(record) == 0)
    alloc = record.get("tres_alloc_str") or ""
    wanted = alloc or record.get("tres_req_str") or ""
    limit = text.time_limit_s(record.get("time_limit"))
    ran = not waits and bool(names)
    return ObservedJob(
        external_id=str(external_id),
        token=token_in(record.get("comment"), record.get("admin_comment"), record.get("extra")),
        name=str(record.get("name") or ""),
        unix_user=record.get("user_name") or None,
        state=state,
        held=held,
        reason=_reason(state, slurm_reason, held, found.flags, exit_code, exit_signal, record),
        account=record.get("account") or None,
        partition=(record.get("partition") or "").partition(",")[0] or None,
        nodes=() if waits else names,
        accelerators=() if waits else _cards(record, names),
        submitted_at=text.instant(record.get("submit_time")),
        # The start of a job that waits is the scheduler's estimate; one that never had nodes never started.
        started_at=started_at if ran else None,
        ended_at=text.instant(record.get("end_time")) if state in FINAL else None,
        exit_code=exit_code,
        exit_signal=exit_signal,
        restart_count=text.integer(record.get("restart_cnt")) or 0,
        stdout_path=_output_path(record, "standard_output", external_id),
        stderr_path=_output_path(record, "standard_error", external_id),
        node_count=text.integer(record.get("node_count")),
        cpus=text.integer(text.tres(wanted).get("cpu")) or text.integer(record.get("cpus")),
        memory_bytes=text.tres_memory_bytes(wanted),
        accelerator_count=_accelerator_count(record),
        time_limit_s=limit.value,
        has_no_limit=limit.infinite,
        qos=record.get("qos") or None,
        priority=_priority(record),
        working_dir=record.get("current_working_directory") or None,
        expected_start_at=started_at if waits and not held else None,
        array=_array(record),
        het_leader=_leader(record),
        het_offset=text.integer(record.get("het_job_offset")) if _leader(record) else None,
    )


def token_in(*texts: Any) -> str | None:
    """Our token in a comment; sites and people may have added words of their own."""
    for value in texts:
        if isinstance(value, Mapping):
            value = value.get("job")
        match = TOKEN.search(value) if isinstance(value, str) else None
        if match is not None:
            return match[0]
    return None


def exit_status(raw: Any) -> tuple[int | None, int | None]:
    """Exit code and signal, at most one set. A wait status, `{status, return_code, signal}`, or `3:0` of sacct."""
    if isinstance(raw, Mapping):
        number = raw.get("signal")
        if isinstance(number, Mapping):
            number = number.get("id", number.get("signal_id"))
        return _code_or_signal(text.integer(raw.get("return_code")), text.integer(number))
    if isinstance(raw, str) and ":" in raw:
        code, _, number = raw.partition(":")
        return _code_or_signal(text.integer(code), text.integer(number))
    status = text.integer(raw)
    return (None, None) if status is None else _code_or_signal((status >> 8) & 0xFF, status & 0x7F)


def _code_or_signal(code: int | None, number: int | None) -> tuple[int | None, int | None]:
    if number:
        return None, number
    # A shell says 128 + N when its command died of signal N; Slurm passes the shell's word on.
    return (code, None) if code is not None else (None, None)


def _reason(
    state: JobState,
    slurm_reason: str,
    held: bool,
    flags: tuple[str, ...],
    code: int | None,
    number: int | None,
    record: Record,
) -> str:
    if state == JobState.PENDING:
        return "held" if held and not states.is_held(slurm_reason) else states.waiting_text(slurm_reason)
    if state in FINAL:
        said = states.ending_text(state, slurm_reason, code, number)
        if number is not None and number in set(signal.Signals):
            said = said.replace(f"signal {number}", f"signal {number} ({signal.Signals(number).name})")
        return said
    description = str(record.get("state_description") or "")
    return description or states.state_text(flags)


def _priority(record: Record) -> int | None:
    return text.integer(record.get("priority"))


def _nodes_text(record: Record) -> str:
    nodes = record.get("nodes")
    if isinstance(nodes, str) and nodes:
        return nodes
    inner = record.get("job_resources")
    if isinstance(inner, Mapping):
        listed = inner.get("nodes")
        if isinstance(listed, Mapping):
            listed = listed.get("list")
        if isinstance(listed, str):
            return listed
    return ""


def _hosts(listed: str, doubts: Doubts) -> tuple[str, ...]:
    try:
        return text.host_names(listed)
    except ValueError:
        doubts.note(f"node list {listed[:80]}")
        return ()


def _accelerator_count(record: Record) -> int | None:
    """From the allocation; before there is one, from what was asked for. 0 where neither names a GPU."""
    alloc = record.get("tres_alloc_str") or ""
    if alloc:
        return text.tres_gpus(alloc).total
    asked = record.get("tres_req_str") or ""
    if text.tres_gpus(asked).total:
        return text.tres_gpus(asked).total
    per_node = text.gres_gpus(record.get("tres_per_node")).total
    if per_node:
        return per_node * max(1, text.integer(record.get("node_count")) or 1)
    return text.gres_gpus(record.get("tres_per_job")).total


def _cards(record: Record, names: tuple[str, ...]) -> tuple[AllocatedAccelerator, ...]:
    """Which cards of which node, from `gres_detail`: one text a node, in the order of the node list."""
    detail = record.get("gres_detail") or ()
    if not isinstance(detail, (list, tuple)) or len(detail) != len(names):
        return ()
    return tuple(
        AllocatedAccelerator(node, index)
        for node, said in zip(names, detail, strict=True)
        for part in text.gres(str(said))
        for index in part.indices
    )


def _array(record: Record) -> ArrayPart | None:
    array_id = text.integer(record.get("array_job_id"))
    if not array_id:
        return None
    task = text.integer(record.get("array_task_id"))
    if task is not None:
        return ArrayPart(str(array_id), task_index=task)
    try:
        waiting = text.array_tasks(record.get("array_task_string"))
    except ValueError:
        return ArrayPart(str(array_id))
    at_most = waiting.at_most or text.integer(record.get("array_max_tasks")) or None
    return ArrayPart(str(array_id), pending=waiting.indices, at_most=at_most)


def _leader(record: Record) -> str | None:
    leader = text.integer(record.get("het_job_id"))
    return str(leader) if leader else None


def _output_path(record: Record, name: str, external_id: int) -> str | None:
    """Where the job writes. Slurm's patterns are put in where the release has not done so."""
    pattern = record.get(f"{name}_expanded") or record.get(name) or ""
    folder = record.get("current_working_directory") or ""
    array = _array(record)
    if not pattern:
        if name == "standard_error":
            return _output_path(record, "standard_output", external_id)
        pattern = "slurm-%A_%a.out" if array else "slurm-%j.out"
    values = {
        "j": str(external_id),
        "A": array.array_id if array else str(external_id),
        "a": "" if array is None or array.task_index is None else str(array.task_index),
        "x": str(record.get("name") or ""),
        "u": str(record.get("user_name") or ""),
        "%": "%",
    }
    path = re.sub(r"%(\d*)([jAaxu%])", lambda m: values[m[2]].zfill(int(m[1] or 0)), pattern)
    if path.startswith("/"):
        return path
    return f"{folder.rstrip('/')}/{path}" if folder else None


# -- jobs of the accounting -------------------------------------------------------------------------------------------


def accounted_job(record: Record, doubts: Doubts) -> ObservedJob | None:
    """A job of `/slurmdb/.../job(s)`: what is left of one that the controller has forgotten."""
    given = record.get("state") or {}
    times = record.get("time") or {}
    codes = record.get("exit_code") or {}
    array = record.get("array") or {}
    het = record.get("het") or {}
    # A record says so of a run that is over: the job's next run has a record of its own.
    was_requeued = "REQUEUED" in states.job_state(given.get("current")).flags and bool(text.integer(times.get("end")))
    flat = {
        "job_id": record.get("job_id"),
        "job_state": "CANCELLED" if was_requeued else given.get("current"),
        "state_reason": given.get("reason"),
        "name": record.get("name"),
        "user_name": record.get("user") or (record.get("association") or {}).get("user"),
        "account": record.get("account"),
        "partition": record.get("partition"),
        "nodes": record.get("nodes"),
        "comment": record.get("comment"),
        "submit_time": times.get("submission"),
        "start_time": times.get("start"),
        "end_time": times.get("end"),
        "time_limit": times.get("limit"),
        "exit_code": codes,
        "restart_cnt": record.get("restart_cnt"),
        "node_count": record.get("allocation_nodes"),
        "tres_alloc_str": _tres_text((record.get("tres") or {}).get("allocated")),
        "tres_req_str": _tres_text((record.get("tres") or {}).get("requested")),
        "qos": record.get("qos"),
        "current_working_directory": record.get("working_directory"),
        "standard_output_expanded": record.get("stdout_expanded"),
        "standard_error_expanded": record.get("stderr_expanded"),
        "array_job_id": array.get("job_id"),
        "array_task_id": array.get("task_id"),
        "array_task_string": array.get("task"),
        "het_job_id": het.get("job_id"),
        "het_job_offset": het.get("job_offset"),
    }
    found = job({name: "" if value == "None assigned" else value for name, value in flat.items()}, doubts)
    if found is not None and was_requeued:
        return replace(found, exit_code=None, exit_signal=None, reason="put back into the queue")
    if found is None or found.state != JobState.FAILED or found.exit_code != 0:
        return found
    # 22.05 says "SUCCESS" of every job here; a failed job's code 0 is then no code at all.
    return _without_code(found)


def _without_code(found: ObservedJob) -> ObservedJob:
    return replace(found, exit_code=None, reason="failed; the accounting does not tell its exit code")


def _tres_text(listed: Any) -> str:
    if isinstance(listed, str):
        return listed
    parts = []
    for one in listed if isinstance(listed, (list, tuple)) else ():
        count = text.integer(one.get("count"))
        if count is None:
            continue
        name = f"{one.get('type')}/{one.get('name')}" if one.get("name") else str(one.get("type"))
        parts.append(f"{name}={count}" + ("M" if name == "mem" else ""))
    return ",".join(parts)


# -- nodes and partitions ---------------------------------------------------------------------------------------------


def node(record: Record, doubts: Doubts) -> ObservedNode | None:
    """A node of `/slurm/.../nodes`; None, and a doubt, for one without a name."""
    name = record.get("name")
    if not isinstance(name, str) or not name:
        doubts.note("node record without a name")
        return None
    state = text.node_state(record.get("state"), record.get("state_flags") or ())
    for word in state.unknown:
        doubts.note(f"node state {word}")
    memory_mib = text.integer(record.get("real_memory"))
    used_mib = text.integer(record.get("alloc_memory"))
    return ObservedNode(
        name=name,
        state=node_row_state(state),
        cpus=text.integer(record.get("cpus")) or 0,
        memory_bytes=None if memory_mib is None else memory_mib * MIB,
        flags=state.flags + tuple(word.lower()[:30] for word in state.unknown),
        reason=str(record.get("reason") or ""),
        cpus_used=text.integer(record.get("alloc_cpus")),
        memory_bytes_used=None if used_mib is None else used_mib * MIB,
        accelerator_count=text.gres_gpus(record.get("gres")).total,
        partitions=_names(record.get("partitions")),
    )


def node_row_state(state: text.NodeStateText) -> str:
    """Our one word: who is drained or not there is so whatever else it is."""
    if state.base in {"unknown", "future"}:
        return "unknown"
    if "invalid_reg" in state.flags or ("not_responding" in state.flags and state.base == "down"):
        return "down"
    if "drain" in state.flags:
        if state.base == "down":
            return "down"
        return "drained" if state.base == "idle" else "draining"
    if state.base == "idle" and "planned" in state.flags:
        return "planned"
    return state.base


def partition(record: Record, doubts: Doubts) -> ObservedPartition | None:
    name = record.get("name")
    if not isinstance(name, str) or not name:
        doubts.note("partition record without a name")
        return None
    most = record.get("maximums") if isinstance(record.get("maximums"), Mapping) else {}
    inner = record.get("partition") if isinstance(record.get("partition"), Mapping) else {}
    assert isinstance(most, Mapping) and isinstance(inner, Mapping)
    state = record.get("state", inner.get("state", "UP"))
    flags = [str(flag).lower() for flag in record.get("flags") or ()]
    limit = text.time_limit_s(record.get("max_time_limit", most.get("time")))
    return ObservedPartition(
        name=name,
        is_default="default" in flags,
        is_up=(state[0] if isinstance(state, list) and state else state) == "UP",
        max_time_s=limit.value,
        max_nodes_per_job=_limit(record.get("maximum_nodes_per_job", most.get("nodes"))),
        max_cpus_per_node=_limit(record.get("maximum_cpus_per_node", most.get("cpus_per_node"))),
    )


def _limit(raw: Any) -> int | None:
    return text.integer(raw) or None


def _names(listed: Any) -> tuple[str, ...]:
    if isinstance(listed, str):
        return tuple(name for name in listed.split(",") if name)
    return tuple(str(name) for name in listed or ())


def errors(body: Mapping[str, Any]) -> list[str]:
    """The `errors` of a reply as sentences; their number stands under three names."""
    found = []
    for one in body.get("errors") or ():
        if not isinstance(one, Mapping):
            found.append(str(one))
            continue
        code = error_code(one)
        words = [str(one.get(name)) for name in ("error", "description") if one.get(name)]
        said = ": ".join(dict.fromkeys(words)) or "no text"
        found.append(f"{said} ({code})" if code not in (None, 0, -1) else said)
    return found


def error_code(one: Mapping[str, Any]) -> int | None:
    for name in ("error_number", "error_code", "errno"):
        value = one.get(name)
        if isinstance(value, int):
            return value
    return None


def server_time(body: Mapping[str, Any]) -> datetime | None:
    return text.instant(body.get("last_update"))

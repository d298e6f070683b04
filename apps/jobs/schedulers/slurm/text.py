"""What Slurm writes as text or as numbers with a meaning, to values. Pure; raises ValueError for what cannot be read.

Each function takes every spelling that releases 22.05 to 25.11 use, in REST replies and in the commands' output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from apps.core.errors import InvalidInput
from apps.inventory.noderange import node_names

# What a bare integer means where a release has no other way to say it (slurm.h: NO_VAL, INFINITE; 16, 32, 64 bits).
_NO_VALUE: Final = frozenset({0xFFFE, 0xFFFFFFFE, 0xFFFFFFFFFFFFFFFE})
_INFINITE: Final = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
MAX_NODES: Final = 200_000


@dataclass(frozen=True)
class Number:
    """A number as Slurm tells it: a value, or no limit, or not known (both fields empty)."""

    value: int | None = None
    infinite: bool = False


def number(raw: Any) -> Number:
    """`7`, `"7"`, `{"set": true, "infinite": false, "number": 7}`, null, or a 32-bit sentinel."""
    if isinstance(raw, Mapping):
        if raw.get("infinite"):
            return Number(infinite=True)
        return number(raw.get("number")) if raw.get("set") else Number()
    if isinstance(raw, bool) or raw is None:
        return Number()
    if isinstance(raw, str):
        text = raw.strip()
        if text.upper() in {"INFINITE", "UNLIMITED"}:
            return Number(infinite=True)
        if not re.fullmatch(r"-?\d+(\.\d+)?", text):
            return Number()
        raw = float(text) if "." in text else int(text)
    if isinstance(raw, float):
        raw = int(raw) if raw == raw and abs(raw) < 2**63 else None
    if not isinstance(raw, int) or raw in _NO_VALUE:
        return Number()
    return Number(infinite=True) if raw in _INFINITE else Number(raw)


def integer(raw: Any) -> int | None:
    """The value, None when it is unknown, unlimited or negative."""
    value = number(raw).value
    return value if value is not None and value >= 0 else None


def instant(raw: Any) -> datetime | None:
    """Unix seconds in any number's spelling, or ISO text as the commands print it in UTC. 0 and absurd ones: None."""
    if isinstance(raw, str) and "T" in raw:
        try:
            found = datetime.fromisoformat(raw.strip())
        except ValueError:
            return None
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    seconds = integer(raw)
    # Year 2200: beyond it the scheduler means "never".
    return datetime.fromtimestamp(seconds, UTC) if seconds and seconds < 7_258_118_400 else None


def time_limit_s(raw: Any) -> Number:
    """A limit in seconds. Bare numbers are minutes; text is [days-]hours:minutes:seconds or minutes[:seconds]."""
    if isinstance(raw, str) and not re.fullmatch(r"\s*-?\d+\s*", raw):
        return _time_text(raw.strip())
    minutes = number(raw)
    if minutes.value is None or minutes.value < 0:
        return Number(infinite=minutes.infinite)
    return Number(minutes.value * 60)


def _time_text(text: str) -> Number:
    if text.upper() in {"UNLIMITED", "INFINITE"}:
        return Number(infinite=True)
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return Number()
    days, *parts = match.groups()
    given = [int(part) for part in parts if part is not None]
    if days is not None:  # D-HH, D-HH:MM, D-HH:MM:SS
        hours, minutes, seconds = (*given, 0, 0)[:3]
        return Number(int(days) * 86400 + hours * 3600 + minutes * 60 + seconds)
    if len(given) == 3:
        return Number(given[0] * 3600 + given[1] * 60 + given[2])
    return Number(given[0] * 60 + given[1])


def host_names(text: str | None) -> tuple[str, ...]:
    """`gpu[001-004,200]` to its names. Raises ValueError for what is no list of names."""
    text = (text or "").strip()
    if text.lower() in {"", "(null)", "none", "n/a", "none assigned"}:
        return ()
    try:
        return node_names(_widened(text), limit=MAX_NODES)
    except InvalidInput as error:
        raise ValueError(next(iter(error.fields.values()))[0]) from None


def _widened(text: str) -> str:
    """Slurm takes a range's width from its lower end, `gpu[001-10]`; ClusterShell wants both ends alike."""

    def widen(match: re.Match[str]) -> str:
        first, last = match[1], match[2]
        return f"{first}-{last.zfill(len(first)) if first[0] == '0' else last}"

    return re.sub(r"(\d+)-(\d+)(?=[,\]])", widen, text)


# -- counts of GPUs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpus:
    """How many cards, and how many of each type; cards of no named type stand under ""."""

    total: int = 0
    by_type: dict[str, int] = field(default_factory=dict)


def tres(text: str | None) -> dict[str, str]:
    """`cpu=64,mem=512G,gres/gpu:a100=8` to its parts."""
    pairs = (part.split("=", 1) for part in (text or "").split(",") if "=" in part)
    return {name.strip(): value.strip() for name, value in pairs}


def tres_gpus(text: str | None) -> Gpus:
    """GPUs in a TRES text. `gres/gpu` counts all of them, `gres/gpu:TYPE` the same ones by type: never added up."""
    typed: dict[str, int] = {}
    untyped = None
    for name, value in tres(text).items():
        count = integer(value)
        if count is None:
            continue
        if name == "gres/gpu":
            untyped = count
        elif name.startswith("gres/gpu:"):
            typed[name.removeprefix("gres/gpu:")] = count
    return _gpus(typed, untyped)


def _gpus(typed: Mapping[str, int], untyped: int | None) -> Gpus:
    known = sum(typed.values())
    total = known if untyped is None else max(known, untyped)
    rest = {"": total - known} if total > known else {}
    return Gpus(total, {**typed, **rest})


def tres_memory_bytes(text: str | None) -> int | None:
    """`mem=` of a TRES text: a number with K, M, G, T or P, mebibytes without."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)[Bb]?", tres(text).get("mem", ""))
    if match is None:
        return None
    return int(float(match[1]) * 1024 ** ("KMGTP".index(match[2] or "M") + 1))


_GRES: Final = re.compile(
    r"(?:gres[:/])?gpu(?::(?P<type>[^:(=\d][^:(=]*|\d+g\.[^:(=]+))?(?:[:=](?P<count>\d+))?(?:\((?P<more>[^)]*)\))?\Z"
)


@dataclass(frozen=True)
class GresPart:
    """One entry of a GRES text: `gpu:h100:4(IDX:0-3)`. `indices` is empty where they are not told."""

    type: str
    count: int
    indices: tuple[int, ...] = ()


def gres(text: str | None) -> list[GresPart]:
    """The GPUs in a GRES text; other resources (shards, licences, MPS) are left out."""
    found = []
    for part in re.split(r",(?![^(]*\))", text or ""):
        match = _GRES.match(part.strip())
        if match is None:
            continue
        more = match["more"] or ""
        listed = more.removeprefix("IDX:") if more.startswith("IDX:") else ""
        count = int(match["count"]) if match["count"] is not None else 1
        found.append(GresPart(match["type"] or "", count, integers(listed)))
    return found


def gres_gpus(text: str | None) -> Gpus:
    by_type: dict[str, int] = {}
    for part in gres(text):
        by_type[part.type] = by_type.get(part.type, 0) + part.count
    return Gpus(sum(by_type.values()), by_type)


def integers(text: str) -> tuple[int, ...]:
    """`0-3,7` or `10-20:2` to the numbers; what is none ("N/A") is left out. At most a million."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+)(?::(\d+))?)?\s*", part)
        if match is None:
            continue
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last - first > 1_000_000 or step < 1:
            raise ValueError(f"{part!r} is no range of numbers")
        found.extend(range(first, last + 1, step))
    return tuple(found)


# -- ids --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobId:
    """A job's id as people and commands write it. `pending` are the tasks an array has not started yet."""

    job: int
    task: int | None = None
    pending: tuple[int, ...] = ()
    at_most: int | None = None
    het_offset: int | None = None
    step: str | None = None


_JOB_ID: Final = re.compile(r"(\d{1,10})(?:_(?:(\d{1,9})|\[([\d,:\-]+)(?:%(\d+))?\]))?(?:\+(\d{1,6}))?(?:\.(\w+))?")


def job_id(text: str) -> JobId:
    """`123`, `123_7`, `123_[1-100%5]`, `123+1`, `123.batch`. Raises ValueError for anything else."""
    match = _JOB_ID.fullmatch(text.strip())
    if match is None or int(match[1]) > 0xFFFFFFFF:
        raise ValueError(f"{text[:60]!r} is no job id; write it like 123, 123_7 or 123+1")
    job, task, pending, at_most, het, step = match.groups()
    return JobId(
        int(job),
        None if task is None else int(task),
        integers(pending or ""),
        None if at_most is None else int(at_most),
        None if het is None else int(het),
        step,
    )


@dataclass(frozen=True)
class ArrayTasks:
    """`1-100%5`: the tasks that wait, and how many may run at a time (None: no limit)."""

    indices: tuple[int, ...]
    at_most: int | None = None


def array_tasks(text: str | None) -> ArrayTasks:
    """`array_task_string` of a reply, with or without its brackets; a cut-off list ends in `...`."""
    listed, _, limit = (text or "").strip().strip("[]").partition("%")
    return ArrayTasks(integers(listed.removesuffix("...").rstrip(",")), integer(limit) if limit else None)


# -- nodes' states ----------------------------------------------------------------------------------------------------

_BASES: Final = {
    "IDLE": "idle",
    "MIXED": "mixed",
    "MIX": "mixed",
    "ALLOCATED": "allocated",
    "ALLOC": "allocated",
    "DOWN": "down",
    "ERROR": "down",
    "FUTURE": "future",
    "FUTR": "future",
}
# sinfo's compact forms that stand for a base and a flag.
_COMBINED: Final = {
    "DRAINED": ("idle", "drain"),
    "DRAIN": ("idle", "drain"),
    "DRNG": ("mixed", "drain"),
    "DRAINING": ("mixed", "drain"),
    "COMP": ("allocated", "completing"),
    "COMPLETING": ("allocated", "completing"),
    "INVAL": ("idle", "invalid_reg"),
    "MAINT": ("idle", "maint"),
    "RESERVED": ("idle", "reserved"),
    "RESV": ("idle", "reserved"),
    "PLANNED": ("idle", "planned"),
    "PLND": ("idle", "planned"),
    "POWERED_DOWN": ("idle", "powered_down"),
}
_FLAGS: Final = {
    "MAINTENANCE": "maint",
    "RES": "reserved",
    "RESERVED": "reserved",
    "POWER_DOWN": "powering_down",
    "POWERING_UP": "powering_up",
    "POWER_UP": "powering_up",
    "FAIL": "fail",
}
_SUFFIXES: Final = {
    "*": "not_responding",
    "~": "powered_down",
    "#": "powering_up",
    "%": "powering_down",
    "-": "planned",
    "+": "completing",
    "$": "maint",
    "@": "reboot_requested",
    "^": "reboot_issued",
    "!": "power_down_requested",
}


@dataclass(frozen=True)
class NodeStateText:
    """`base` is idle, mixed, allocated, down, future or unknown; `unknown` holds words we have no meaning for."""

    base: str
    flags: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def node_state(raw: Any, more_flags: Sequence[str] = ()) -> NodeStateText:
    """`IDLE+DRAIN`, `mixed-`, `["IDLE", "DRAIN"]`, or `idle` with its `state_flags` apart."""
    words = [str(word) for word in raw] if isinstance(raw, (list, tuple)) else re.split(r"\+(?=\w)", str(raw or ""))
    flags: list[str] = []
    unknown: list[str] = []
    base = None
    for word in [*words, *map(str, more_flags)]:
        name = word.strip()
        marks: list[str] = []
        while name and name[-1] in _SUFFIXES:
            marks.append(_SUFFIXES[name[-1]])
            name = name[:-1]
        name = name.upper()
        if name in _BASES and base is None:
            base = _BASES[name]
        elif name in _COMBINED and base is None and len(words) == 1 and not more_flags:
            base, flag = _COMBINED[name]
            flags.append(flag)
        elif name in {"", "UNKNOWN", "UNK"}:
            pass
        elif name in _FLAGS or name in _KNOWN_FLAGS:
            flags.append(_FLAGS.get(name, name.lower()))
        else:
            unknown.append(word.strip())
        flags += marks
    # A flag we have never met may well say that the node is unusable, but it is not for us to guess a state from it.
    return NodeStateText(base or "unknown", tuple(dict.fromkeys(flags)), tuple(unknown))


_KNOWN_FLAGS: Final = frozenset(
    {
        *("DRAIN", "NOT_RESPONDING", "COMPLETING", "PLANNED", "CLOUD", "POWERED_DOWN", "POWERING_DOWN", "INVALID_REG"),
        *("REBOOT_REQUESTED", "REBOOT_ISSUED", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "UNDRAIN", "RESUME", "BLOCKED"),
        *("POWER_DRAIN", "REBOOT_CANCELED", "EXTERNAL", "DYNAMIC", "MAINT", "NO_RESPOND", "PERFCTRS"),
    }
)
# A node with one of these takes no new job now.
_KEEPS_JOBS_AWAY: Final = frozenset(
    {
        *("drain", "not_responding", "powered_down", "powering_up", "powering_down", "planned", "maint"),
        *("invalid_reg", "fail", "reboot_issued", "completing", "power_drain", "blocked", "power_down_requested"),
    }
)
_UNHEALTHY: Final = frozenset({"drain", "not_responding", "maint", "invalid_reg", "fail", "power_drain"})


def takes_jobs(state: NodeStateText) -> bool:
    """Whether a job could start there now, were there room."""
    return state.base in {"idle", "mixed"} and not _KEEPS_JOBS_AWAY & set(state.flags)


def is_healthy(state: NodeStateText) -> bool:
    return state.base in {"idle", "mixed", "allocated"} and not _UNHEALTHY & set(state.flags)

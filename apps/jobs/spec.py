"""What a job asks for, and what of it is refused before anything is stored. Pure: no rows, no Django."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Final, Protocol

from apps.core.errors import InvalidInput
from apps.core.units import GIB, MIB, hours

KINDS: Final = ("training", "fine_tuning", "data", "inference_batch", "test")

# What the submit form starts with, by kind; people change it.
KIND_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "training": {"cpus_per_node": 1, "memory_bytes_per_node": 2 * GIB, "time_limit_s": 3600, "max_retries": 1},
    "fine_tuning": {"cpus_per_node": 1, "memory_bytes_per_node": 2 * GIB, "time_limit_s": 1800, "max_retries": 1},
    "data": {"cpus_per_node": 1, "memory_bytes_per_node": 1 * GIB, "time_limit_s": 3600, "max_retries": 0},
    "inference_batch": {"cpus_per_node": 1, "memory_bytes_per_node": 2 * GIB, "time_limit_s": 3600, "max_retries": 0},
    "test": {"cpus_per_node": 1, "memory_bytes_per_node": 256 * MIB, "time_limit_s": 300, "max_retries": 0},
}

MAX_NAME = 200
MAX_SCRIPT_BYTES = MIB
MAX_ENVIRONMENT = 200
MAX_ENVIRONMENT_BYTES = 128 * 1024
MAX_TAGS = 20
MAX_TAG = 50
MAX_RETRIES = 10
MAX_NODES = 100_000
MAX_ACCELERATORS = 1024
MAX_CPUS = 65_536
MAX_MEMORY_BYTES = 2**50
MIN_MEMORY_BYTES = MIB
MAX_TIME_S = 366 * 86400

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")
_CONSTRAINTS = re.compile(r"[A-Za-z0-9_.,:&|*()\[\]-]{1,500}\Z")
_TAG = re.compile(r"[\w.:/+-]+\Z")
# Set by the scheduler or by us; a job that could set them itself could lie about what it was given.
_RESERVED_PREFIXES = ("SWITCHYARD_", "SLURM_", "SBATCH_")
# They make the loader or the shell run something else than the script that was shown.
_RESERVED_NAMES = frozenset({"LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV", "CUDA_VISIBLE_DEVICES"})


@dataclass(frozen=True)
class JobSpec:
    """One job as a person describes it. Counts are per node where they say so; memory in bytes, time in seconds.

    `memory_bytes_per_node` and `time_limit_s` None: the partition's own. `parent_checkpoint` is a Checkpoint's pk.
    """

    name: str
    kind: str
    script: str
    environment: dict[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    partition: str | None = None
    nodes: int = 1
    accelerators_per_node: int = 0
    cpus_per_node: int = 1
    memory_bytes_per_node: int | None = None
    time_limit_s: int | None = None
    qos: str | None = None
    reservation: str | None = None
    constraints: str | None = None
    parent_checkpoint: int | None = None
    max_retries: int = 0
    tags: tuple[str, ...] = ()

    def validated(self) -> JobSpec:
        """The same spec, normalised. Raises InvalidInput with every wrong field at once."""
        problems: dict[str, list[str]] = {}
        for name, message in _problems(self):
            problems.setdefault(name, []).append(message)
        if problems:
            raise InvalidInput(problems)
        return replace(
            self,
            name=self.name.strip(),
            script=normalised_script(self.script),
            working_dir=self.working_dir or None,
            partition=self.partition or None,
            qos=self.qos or None,
            reservation=self.reservation or None,
            constraints=self.constraints or None,
            tags=tuple(dict.fromkeys(tag.strip() for tag in self.tags)),
        )


class Wish(Protocol):
    """What of a spec, or of a job's row, decides how many hours it needs."""

    nodes: int
    accelerators_per_node: int
    cpus_per_node: int


def hours_for(wish: Wish, seconds: float | Decimal) -> tuple[Decimal, Decimal]:
    """GPU-hours and CPU-hours of `seconds` on everything the wish asks for."""
    return hours(seconds, wish.nodes * wish.accelerators_per_node), hours(seconds, wish.nodes * wish.cpus_per_node)


def normalised_script(text: str) -> str:
    """Unix line ends, a shebang in the first line, a newline at the end: the exact text that will run."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")
    if not text.startswith("#!"):
        text = "#!/bin/bash\n" + text
    return text if text.endswith("\n") else text + "\n"


def _problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    yield from _name_problems(spec.name)
    if spec.kind not in KINDS:
        yield "kind", f"{spec.kind!r} is no kind of job; choose one of {', '.join(KINDS)}."
    yield from _script_problems(spec.script)
    yield from _environment_problems(spec.environment)
    yield from _folder_problems(spec.working_dir)
    if spec.partition and not _PARTITION.match(spec.partition):
        yield "partition", "A partition's name has letters, digits, dots, dashes and underscores only."
    for name in ("qos", "reservation"):
        if getattr(spec, name) and not _PARTITION.match(getattr(spec, name)):
            yield name, "The name has letters, digits, dots, dashes and underscores only."
    if spec.constraints and not _CONSTRAINTS.match(spec.constraints):
        yield (
            "constraints",
            "Write features as the scheduler does, like h100&ib or [leaf1|leaf2]; up to 500 characters.",
        )
    yield from _amount("nodes", spec.nodes, 1, MAX_NODES)
    yield from _amount("accelerators_per_node", spec.accelerators_per_node, 0, MAX_ACCELERATORS)
    yield from _amount("cpus_per_node", spec.cpus_per_node, 1, MAX_CPUS)
    if spec.memory_bytes_per_node is not None:
        yield from _amount("memory_bytes_per_node", spec.memory_bytes_per_node, MIN_MEMORY_BYTES, MAX_MEMORY_BYTES)
    if spec.time_limit_s is not None:
        yield from _amount("time_limit_s", spec.time_limit_s, 1, MAX_TIME_S)
    yield from _amount("max_retries", spec.max_retries, 0, MAX_RETRIES)
    yield from _tag_problems(spec.tags)


def _name_problems(name: str) -> Iterator[tuple[str, str]]:
    if not isinstance(name, str) or not name.strip():
        yield "name", "Give the job a name."
        return
    if len(name.strip()) > MAX_NAME:
        yield "name", f"The name has {len(name.strip())} characters; {MAX_NAME} is the limit."
    if any(unicodedata.category(c) in {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"} for c in name):
        yield "name", "The name must be one line of printable characters."
    elif any(c in "\u202a\u202b\u202d\u202e\u2066\u2067\u2068" for c in name):
        yield "name", "The name holds marks that turn the reading direction; leave them out."


def _script_problems(script: str) -> Iterator[tuple[str, str]]:
    if not isinstance(script, str) or not script.strip():
        yield "script", "Write the script or command the job is to run."
        return
    if "\0" in script:
        yield "script", "The script holds a NUL character, so it is not text."
    try:
        size = len(script.encode())
    except UnicodeEncodeError:
        yield "script", "The script holds characters that are not valid Unicode."
        return
    if size > MAX_SCRIPT_BYTES:
        yield (
            "script",
            f"The script has {size / MIB:.1f} MiB; 1 MiB is the limit. Put data into a file and read it from there.",
        )


def _environment_problems(environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    if len(environment) > MAX_ENVIRONMENT:
        yield "environment", f"{len(environment)} variables; {MAX_ENVIRONMENT} is the limit."
        return
    for name, value in environment.items():
        shown = repr(name[:60])
        if not _ENV_NAME.match(name):
            yield (
                "environment",
                f"{shown} is not a variable's name: letters, digits and underscores, not starting with a digit.",
            )
        elif name.startswith(_RESERVED_PREFIXES) or name in _RESERVED_NAMES:
            yield "environment", f"{shown} is set by the system and cannot be set by a job."
        if not isinstance(value, str):
            yield "environment", f"The value of {shown} must be text."
        elif any(ord(c) < 32 and c not in "\t\n" for c in value) or not _is_encodable(value):
            yield "environment", f"The value of {shown} holds a control character."
    total = sum(len(n) + len(v) for n, v in environment.items() if isinstance(v, str))
    if total > MAX_ENVIRONMENT_BYTES:
        yield (
            "environment",
            f"The variables have {total:,} characters together; {MAX_ENVIRONMENT_BYTES:,} is the limit.",
        )


def _folder_problems(folder: str | None) -> Iterator[tuple[str, str]]:
    if not folder:
        return
    if len(folder) > 1000:
        yield "working_dir", "The path is longer than 1,000 characters."
    elif any(ord(c) < 32 for c in folder) or not _is_encodable(folder):
        yield "working_dir", "The path holds a control character."
    elif not PurePosixPath(folder).is_absolute():
        yield "working_dir", "Give the whole path, starting with /."
    elif ".." in PurePosixPath(folder).parts:
        yield "working_dir", "Give the path without .. in it."


def _amount(name: str, value: int, least: int, most: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool) or not isinstance(value, int):
        yield name, f"{value!r} is not a whole number."
    elif not least <= value <= most:
        yield name, f"{value:,} is out of range: from {least:,} to {most:,}."


def _tag_problems(tags: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if len(tags) > MAX_TAGS:
        yield "tags", f"{len(tags)} tags; {MAX_TAGS} is the limit."
    for tag in tags[:MAX_TAGS]:
        if not isinstance(tag, str) or not _TAG.match(tag.strip()) or len(tag.strip()) > MAX_TAG:
            yield "tags", f"{str(tag)[:60]!r} is no tag: up to {MAX_TAG} letters, digits and . : / + - _, no spaces."


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

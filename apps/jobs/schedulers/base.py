"""What every scheduler adapter speaks. Pure: no Django, no network, no rows.

The order of calls that makes a job run exactly once (docs/life-of-a-job.md):

    submit_held(submission) -> external_id      the job exists at the scheduler and cannot start
    release(external_id)                        only after the caller has committed the external id
    find_by_token(token)                        after any doubt about a submit, before anything else is tried

Every method may raise `SchedulerUnavailable` (nothing is known to have changed, try later). Times are UTC-aware,
memory is in bytes, durations are in seconds; None means "not known" and, for limits, "no limit".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from apps.jobs.states import JobState


class SchedulerError(Exception):
    """Something went wrong at the scheduler; the text is for operators and people who own the job."""


class SchedulerUnavailable(SchedulerError):
    """The scheduler could not be asked (down, slow, refused us). Nothing is known to have changed."""


class SubmitRefused(SchedulerError):
    """The scheduler said no and no job exists there. The text says why, in words for the job's owner."""


class SubmitUncertain(SchedulerError):
    """The request may or may not have made a job: look it up by its token before anything else."""


class ActionRefused(SchedulerError):
    """The scheduler said no to what an operator asked, and will again. The text says why, in words for the operator."""


class NoSuchJob(SchedulerError):
    """The scheduler does not know this external id (any more)."""


@dataclass(frozen=True)
class RunAs:
    """As whom the job's processes run. `uid` and `gid` are None where the scheduler resolves the name itself."""

    unix_user: str
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True)
class Submission:
    """One attempt of one job, as the scheduler is to run it. Everything has been validated by the caller.

    `token` is `sw-<install>-<uuid>`, unique for ever, and comes back in `ObservedJob.token`.
    `script` is the whole text of the script, starting with `#!`. `name` is for people: one printable line.
    `environment` is all the job gets, besides what the scheduler itself sets: it is never inherited.
    `working_dir` is an absolute path or None: then the scheduler makes a folder of the job's own, or uses the site's.
    `qos`, `reservation` and `constraints` are the scheduler's own words; one that has no such thing refuses them.
    """

    token: str
    name: str
    script: str
    environment: dict[str, str]
    run_as: RunAs
    working_dir: str | None = None
    partition: str | None = None
    account: str | None = None
    nodes: int = 1
    cpus_per_node: int = 1
    accelerators_per_node: int = 0
    memory_bytes_per_node: int | None = None
    time_limit_s: int | None = None
    qos: str | None = None
    reservation: str | None = None
    constraints: str | None = None


@dataclass(frozen=True)
class AllocatedAccelerator:
    """One card given to a job: by UUID where the scheduler tells it, else by node and index."""

    node: str
    index: int
    uuid: str | None = None


@dataclass(frozen=True)
class ArrayPart:
    """Of which array a job is a part: one started task (`task_index`), or those that wait (`pending`)."""

    array_id: str
    task_index: int | None = None
    pending: tuple[int, ...] = ()
    at_most: int | None = None


@dataclass(frozen=True)
class ObservedJob:
    """What the scheduler says of one job now.

    `state` is never QUEUED, DISPATCHING or UNKNOWN: those are ours. A held job is PENDING with `held` True.
    `exit_code` and `exit_signal`: at most one is set; both None while it runs or when not known.
    `reason` is one sentence for people: why it waits, or why it ended as it did. `folder` holds the job's own files,
    where this machine can read them; else it is None and the paths are only told.
    `restart_count` grows when the scheduler starts the same job anew; each start is an attempt of its own.
    Counts are of the whole job over all its nodes; `time_limit_s` None with `has_no_limit` False: not known.
    """

    external_id: str
    token: str | None
    name: str
    unix_user: str | None
    state: JobState
    held: bool = False
    reason: str = ""
    account: str | None = None
    partition: str | None = None
    nodes: tuple[str, ...] = ()
    accelerators: tuple[AllocatedAccelerator, ...] = ()
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    restart_count: int = 0
    folder: str | None = None
    stdout_path: str | None = None
    stderr_path: str | None = None
    metrics_path: str | None = None
    node_count: int | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    accelerator_count: int | None = None
    time_limit_s: int | None = None
    has_no_limit: bool = False
    qos: str | None = None
    priority: int | None = None
    working_dir: str | None = None
    expected_start_at: datetime | None = None
    array: ArrayPart | None = None
    het_leader: str | None = None
    het_offset: int | None = None


@dataclass(frozen=True)
class Changes:
    """Jobs that may have changed since `cursor` was handed out. Reporting one too many is fine, one too few is not.

    `complete` True says that `jobs` holds every job the scheduler still knows, so that a missing one is gone; `gone`
    names jobs that were listed before and are no longer, and of whose end nothing could be found out.
    `notes` tell an operator what in the scheduler's answer was not understood.
    """

    jobs: tuple[ObservedJob, ...]
    cursor: str
    complete: bool = False
    gone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ObservedAccelerator:
    index: int
    uuid: str
    model: str
    memory_bytes: int | None = None


@dataclass(frozen=True)
class ObservedNode:
    """`state` is one of inventory's node states (idle, mixed, allocated, down ...); `flags` e.g. ("drain",).

    A node that is not to start jobs has the flag "drain" and says why in `reason`, whoever drained it.
    """

    name: str
    state: str
    cpus: int
    memory_bytes: int | None
    flags: tuple[str, ...] = ()
    reason: str = ""
    cpus_used: int | None = None
    memory_bytes_used: int | None = None
    accelerators: tuple[ObservedAccelerator, ...] = ()
    # Where the scheduler counts cards and cannot tell which: else the number of `accelerators`.
    accelerator_count: int | None = None
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class ObservedPartition:
    name: str
    is_default: bool = False
    is_up: bool = True
    max_time_s: int | None = None
    max_nodes_per_job: int | None = None
    max_cpus_per_node: int | None = None
    max_memory_bytes_per_node: int | None = None
    max_accelerators_per_node: int | None = None


@dataclass(frozen=True)
class ClusterView:
    nodes: tuple[ObservedNode, ...]
    partitions: tuple[ObservedPartition, ...]
    # What an operator should know, e.g. that jobs run as the product's own user.
    notes: tuple[str, ...] = field(default=())


class Scheduler(Protocol):
    """One scheduler control plane. Implementations hold no rows and are safe to call from several processes."""

    def submit_held(self, submission: Submission) -> str:
        """Hand in a job that must not start until released; returns its external id.

        Raises SubmitRefused (no job exists), SubmitUncertain (one may) or SchedulerUnavailable (none was made).
        Submitting a token the scheduler already has returns the same external id and makes no second job, where the
        scheduler can tell; callers must not rely on it.
        """
        ...

    def release(self, external_id: str) -> None:
        """Let a held job start. Releasing twice, or a job that has started or ended, is no error."""
        ...

    def hold(self, external_id: str) -> None:
        """Keep a job that has not started from starting; no error, and no effect, once it runs."""
        ...

    def cancel(self, external_id: str, reason: str = "") -> None:
        """End a job: TERM, grace, KILL. No error if it has ended. Raises NoSuchJob for an id it never had."""
        ...

    def find_by_token(self, token: str) -> ObservedJob | None:
        """The job that was submitted with `token`, also while held and after it ended; None when there is none."""
        ...

    def changes(self, cursor: str | None) -> Changes:
        """What may have changed since `cursor` (None: everything still known)."""
        ...

    def jobs(self, external_ids: Sequence[str]) -> list[ObservedJob]:
        """These jobs as they are now; an id that is not known is left out."""
        ...

    def nodes(self) -> ClusterView:
        """All nodes and partitions."""
        ...

    def set_nodes(self, names: Sequence[str], action: str, reason: str = "") -> None:
        """`action` "drain": these nodes start no more jobs, and what runs there goes on; `reason` says why, in a line.
        "resume": they start jobs again.

        A node that is so already is no error; draining one anew replaces its reason. `nodes` shows it afterwards.
        Raises ActionRefused (never tried again; some of the nodes may have been done) or SchedulerUnavailable.
        """
        ...

"""The states of a job and of an attempt, and which may follow which. Pure: imports nothing of Django's models.

`JobState` is a plain `StrEnum`; models.py turns it into choices. Two states need care:

* `UNKNOWN`: a submit was sent and its outcome is not known yet. Recoverable: found again by its token.
* `LOST`: the job ended and nobody knows how. Final for people, but accounting may still correct it.
"""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"  # our row exists; the scheduler has not been asked yet
    DISPATCHING = "dispatching"  # a worker has claimed it and is talking to the scheduler
    UNKNOWN = "unknown"  # the submit's outcome is not known yet
    PENDING = "pending"  # the scheduler has it and has not started it
    RUNNING = "running"
    COMPLETING = "completing"  # the processes have ended, the scheduler is tidying up
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAILED = "node_failed"
    PREEMPTED = "preempted"
    DEADLINE = "deadline"
    BOOT_FAILED = "boot_failed"
    LOST = "lost"


WAITING = frozenset({JobState.QUEUED, JobState.DISPATCHING, JobState.UNKNOWN, JobState.PENDING})
ACTIVE = frozenset({JobState.RUNNING, JobState.COMPLETING})
FINAL = frozenset(JobState) - WAITING - ACTIVE
FAILURES = FINAL - {JobState.COMPLETED, JobState.CANCELLED}

# Ends that a retry may repair. A cancel, a deadline and running out of time are somebody's decision, so they are not.
RETRYABLE = frozenset(
    {JobState.FAILED, JobState.NODE_FAILED, JobState.PREEMPTED, JobState.BOOT_FAILED, JobState.OUT_OF_MEMORY}
)

_RANK = {
    JobState.QUEUED: 0,
    JobState.DISPATCHING: 1,
    JobState.UNKNOWN: 1,
    JobState.PENDING: 2,
    JobState.RUNNING: 3,
    JobState.COMPLETING: 4,
}


def is_final(state: str) -> bool:
    return JobState(state) in FINAL


def next_state(current: str, observed: str) -> JobState | None:
    """The state an attempt moves to when the scheduler reports `observed`, or None when nothing changes.

    A scheduler's answer can be older than what we know (two polls overtaking each other), so an attempt never moves
    backwards, and a final state is never left, with one exception: `LOST` may be corrected to any other final state.
    """
    now, seen = JobState(current), JobState(observed)
    if now == seen:
        return None
    if now in FINAL:
        return seen if now == JobState.LOST and seen in FINAL else None
    if seen in FINAL:
        return seen
    return seen if _RANK[seen] > _RANK[now] else None

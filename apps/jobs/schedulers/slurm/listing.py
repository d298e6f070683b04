"""What changed at a Slurm since the last look, at the price of one cheap request a look.

The list of jobs comes from squeue's text where its binaries are there, else from `/jobs/state/` where the release has
it, else from `/jobs/`. Whole records are got only for jobs that changed. What a list no longer holds is looked up in
the accounting.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from apps.jobs.schedulers.base import Changes, ObservedJob, SchedulerError, SchedulerUnavailable
from apps.jobs.schedulers.slurm import states, text, translate
from apps.jobs.schedulers.slurm.client import NotThere, SlurmRest
from apps.jobs.schedulers.slurm.commands import SlurmCommands
from apps.jobs.schedulers.slurm.translate import Doubts
from apps.jobs.states import FINAL, JobState

log = logging.getLogger(__name__)

# Jobs whose whole record is asked for one by one in a look; beyond it the whole list is cheaper.
DETAILS_A_LOOK = 200
# `/jobs/state/` tells no reason and no hold, so now and then everything is read.
WHOLE_EVERY_S = 30.0
WHOLE_EVERY_S_IF_MANY = 600.0
MANY = 2000
STATE_SINCE = 41


@dataclass
class _Memory:
    """What the last look saw. A key is a job's id as the list writes it: `123`, and `123_7` for an array's task."""

    cursor: str = ""
    seen: dict[str, Hashable] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    ids: dict[str, str] = field(default_factory=dict)
    whole: dict[str, ObservedJob] = field(default_factory=dict)
    whole_at: float = 0.0
    # Seen in a short record only; their whole one is still to be got.
    thin: list[str] = field(default_factory=list)

    def note(self, key: str, fingerprint: Hashable, state: JobState | None, external_id: str) -> None:
        self.seen[key], self.ids[key] = fingerprint, external_id
        if state in FINAL:
            self.ended.add(key)


class Listing:
    """One cluster's jobs. Keeps what it has seen, so it belongs into one long-lived process; safe between threads."""

    def __init__(self, rest: SlurmRest, commands: SlurmCommands | None, reader: str, how: str = "auto") -> None:
        if how not in {"auto", "squeue", "state", "jobs"}:
            raise TypeError(f"poll {how!r} is none of auto, squeue, state, jobs")
        self._rest, self._commands, self._reader, self._how = rest, commands, reader, how
        self._memory = _Memory()
        self._epoch = secrets.token_hex(4)
        self._count = 0
        self._lock = threading.Lock()

    def changes(self, cursor: str | None) -> Changes:
        """As Scheduler.changes. With a cursor that is not of the last look, everything is told."""
        with self._lock:
            last = self._memory if cursor and cursor == self._memory.cursor else _Memory()
            doubts = Doubts()
            memory, found, gone = self._look(last, doubts)
            self._count += 1
            memory.cursor = f"{self._epoch}-{self._count}"
            self._memory = memory
            notes = tuple(f"{what} ({count:,} times) is not known here" for what, count in doubts.most_common(10))
            return Changes(tuple(found), memory.cursor, complete=not last.cursor, gone=tuple(gone), notes=notes)

    def records(self, keys: Sequence[str], doubts: Doubts) -> list[ObservedJob]:
        """These jobs, from the controller or, when that has forgotten them, from the accounting."""
        found: list[ObservedJob] = []
        for key in keys:
            here = self._from_controller(key, doubts)
            found += self._with_earlier_runs(here, doubts) if here else self._from_accounting(key, doubts)
        return found

    # -- one look -------------------------------------------------------------------------------------------------

    def _look(self, last: _Memory, doubts: Doubts) -> tuple[_Memory, list[ObservedJob], list[str]]:
        how = self._way()
        due = time.monotonic() - last.whole_at > (WHOLE_EVERY_S if len(last.seen) < MANY else WHOLE_EVERY_S_IF_MANY)
        if how == "jobs" or (how == "state" and (due or not last.cursor)):
            memory, changed = self._compare_whole(last, doubts)
        elif how == "squeue":
            memory, changed = self._compare_squeue(last, doubts)
        else:
            memory, changed = self._compare_states(last, doubts)
        ended, gone = self._look_for_missing(last, memory, doubts)
        running = self._with_earlier_runs([job for job in changed if job.state not in FINAL], doubts)
        return memory, [*ended, *running, *(job for job in changed if job.state in FINAL)], gone

    def _look_for_missing(self, last: _Memory, memory: _Memory, doubts: Doubts) -> tuple[list[ObservedJob], list[str]]:
        """What the list no longer holds: those whose end the accounting tells, and the ids of the others."""
        missing = [key for key in last.seen if key not in memory.seen and key not in last.ended]
        ended: list[ObservedJob] = []
        gone: list[str] = []
        for key in missing[:DETAILS_A_LOOK]:
            found = [job for job in self._from_accounting(key, doubts) if job.state in FINAL]
            ended += found
            if not found:
                gone.append(last.ids[key])
        for key in missing[DETAILS_A_LOOK:]:  # looked for in the next look
            memory.note(key, None, None, last.ids[key])
        return ended, gone

    def _way(self) -> str:
        if self._how != "auto":
            return self._how
        if self._commands is not None and self._commands.are_there():
            return "squeue"
        return "state" if self._rest.version(self._reader) >= STATE_SINCE else "jobs"

    def _compare_whole(self, last: _Memory, doubts: Doubts) -> tuple[_Memory, list[ObservedJob]]:
        """From `/jobs/`: everything there is to know, compared as we read it."""
        listed = job_list(self._rest.get(self._reader, "jobs/").body)
        memory = _Memory(whole_at=time.monotonic())
        changed = []
        for record in listed:
            job = translate.job(record, doubts)
            if job is None:
                continue
            key = _key(job)
            memory.note(key, job.state, job.state, job.external_id)
            memory.whole[key] = job
            if last.whole.get(key) != job:
                changed.append(job)
        return memory, changed

    def _compare_squeue(self, last: _Memory, doubts: Doubts) -> tuple[_Memory, list[ObservedJob]]:
        assert self._commands is not None
        memory = _Memory()
        changed: dict[str, Mapping[str, Any]] = {}
        for record in self._commands.squeue(self._reader):
            key = str(record["job_id"])
            telling = tuple(record.get(name) for name in _TELLING)
            memory.note(key, telling, states.job_state(record["job_state"]).state, key)
            if last.seen.get(key) != telling:
                changed[key] = record
        wanted = [key for key in dict.fromkeys([*changed, *last.thin]) if key in memory.seen]
        now, memory.thin = wanted[:DETAILS_A_LOOK], wanted[DETAILS_A_LOOK:]
        found = [job for key in now for job in self._from_controller(key, doubts)]
        short = (translate.job(changed[key], doubts) for key in memory.thin if key in changed)
        # squeue tells no exit code, so an ended job waits for its whole record.
        return memory, found + [job for job in short if job is not None and job.state not in FINAL]

    def _compare_states(self, last: _Memory, doubts: Doubts) -> tuple[_Memory, list[ObservedJob]]:
        listed = job_list(self._rest.get(self._reader, "jobs/state/").body)
        memory = _Memory(whole_at=last.whole_at, whole=last.whole)
        changed = []
        for record in listed:
            key = str(record.get("job_id") or "").partition("[")[0].rstrip("_")
            state = states.job_state(record.get("state")).state
            memory.note(key, state, state, last.ids.get(key, key))
            if last.seen.get(key) != state:
                changed.append(key)
        if len(changed) > DETAILS_A_LOOK:
            return self._compare_whole(last, doubts)
        found = []
        for key in changed:
            for job in self._from_controller(key, doubts):
                memory.ids[_key(job)] = job.external_id
                found.append(job)
        return memory, found

    # -- single jobs ----------------------------------------------------------------------------------------------

    def _from_controller(self, key: str, doubts: Doubts) -> list[ObservedJob]:
        try:
            body = self._rest.get(self._reader, f"job/{key}").body
        except NotThere:
            return []
        found = [translate.job(record, doubts) for record in job_list(body)]
        return [job for job in found if job is not None]

    def _from_accounting(self, key: str, doubts: Doubts) -> list[ObservedJob]:
        """All runs of the job, the earliest first; [] when the accounting does not know it or cannot be asked."""
        try:
            body = self._rest.get(self._reader, f"slurmdb:job/{key}", partial=True).body
        except (NotThere, SchedulerUnavailable) as error:
            log.info("the accounting does not tell of job %s: %s", key, error)
            return []
        except SchedulerError as error:
            log.warning("the accounting refused to tell of job %s: %s", key, error)
            return []
        listed = body.get("jobs")
        records = [record for record in listed or () if isinstance(record, Mapping)]
        records.sort(key=lambda record: text.integer((record.get("time") or {}).get("submission")) or 0)
        return accounted_runs(records, doubts)

    def _with_earlier_runs(self, jobs: Sequence[ObservedJob], doubts: Doubts) -> list[ObservedJob]:
        """Before a job that was requeued, how its earlier runs ended: the controller shows the latest only."""
        found = []
        for job in jobs:
            if job.restart_count and job.array is None:
                runs = self._from_accounting(job.external_id, doubts)
                found += [run for run in runs if run.restart_count < job.restart_count and run.state in FINAL]
            found.append(job)
        return found


# What of squeue's record, when it changes, makes the job worth a look.
_TELLING = (
    *("job_state", "state_reason", "array_task_string", "nodes", "start_time", "submit_time"),
    *("time_limit", "partition", "qos", "comment"),
)


def accounted_runs(records: Sequence[Mapping[str, Any]], doubts: Doubts) -> list[ObservedJob]:
    """Records of one job id in the order of their submission, each a run of its own, counted from 0.

    A record with another name or user is another job that was given the same id later: only the last job's runs count.
    """
    runs: list[ObservedJob] = []
    for record in records:
        job = translate.accounted_job(record, doubts)
        if job is None:
            continue
        if runs and (job.name, job.unix_user) != (runs[-1].name, runs[-1].unix_user):
            runs = []
        runs.append(replace(job, restart_count=max(job.restart_count, len(runs))))
    return runs


def job_list(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Raises SchedulerUnavailable where the reply holds no list: an empty list must never be guessed."""
    listed = body.get("jobs")
    if not isinstance(listed, list):
        raise SchedulerUnavailable("Slurm's answer holds no list of jobs")
    return [record for record in listed if isinstance(record, Mapping)]


def _key(job: ObservedJob) -> str:
    """How `/jobs/state/` writes the job's id."""
    if job.array is not None:
        task = job.array.task_index
        return job.array.array_id if task is None else f"{job.array.array_id}_{task}"
    if job.het_leader is not None:
        return f"{job.het_leader}+{job.het_offset or 0}"
    return job.external_id

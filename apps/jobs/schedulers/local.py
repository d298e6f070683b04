"""This machine as a cluster of one node: a scheduler for a laptop, a demo, a single server. See local_spool.py.

There is no daemon. Every call takes the spool's lock, looks what has ended, does what it was asked, and starts what
can start; a small runner beside each job (local_runner.py) does the rest and outlives whoever called.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from apps.jobs.schedulers.base import (
    ActionRefused,
    AllocatedAccelerator,
    Changes,
    ClusterView,
    NoSuchJob,
    ObservedJob,
    ObservedNode,
    ObservedPartition,
    SchedulerUnavailable,
    Submission,
    SubmitUncertain,
)
from apps.jobs.schedulers.local_checks import check_submission, job_user, user_name
from apps.jobs.schedulers.local_files import sync_folder, write_bytes
from apps.jobs.schedulers.local_launch import RunWatch, ask_to_end, launch, make_plan
from apps.jobs.schedulers.local_machine import this_machine
from apps.jobs.schedulers.local_queue import Amount, RunningJob, WaitingJob, amount_text, decide, shortage_text
from apps.jobs.schedulers.local_runner import Result, cancelled_text
from apps.jobs.schedulers.local_spool import Spool, SpoolJob
from apps.jobs.states import JobState

logger = logging.getLogger(__name__)

ARCHIVE_EVERY_S = 300.0


class LocalScheduler:
    """`spool_dir` is ours alone; `jobs_dir` holds a folder for each job and must be enterable by the jobs' users.

    Started as root, jobs run as `Submission.run_as`; else as our own user, which must be allowed (`allow_same_user`).
    `cpus` and `memory_bytes` default to what this process may use.
    """

    def __init__(
        self,
        spool_dir: str | Path,
        jobs_dir: str | Path,
        node_name: str,
        *,
        cpus: int | None = None,
        memory_bytes: int | None = None,
        allow_same_user: bool = False,
        partitions: Sequence[str] = ("local",),
        max_time_s: int | None = None,
        grace_s: float = 10.0,
        python: str = sys.executable,
    ) -> None:
        self._spool = Spool(Path(spool_dir).absolute())
        self._jobs_dir = Path(jobs_dir).absolute()
        self._node_name = node_name
        self._machine = this_machine(cpus, memory_bytes)
        self._total = Amount(self._machine.cpus, self._machine.memory_bytes, len(self._machine.accelerators))
        self._partitions = tuple(
            ObservedPartition(
                name=name,
                is_default=place == 0,
                max_time_s=max_time_s,
                max_nodes_per_job=1,
                max_cpus_per_node=self._machine.cpus,
                max_memory_bytes_per_node=self._machine.memory_bytes,
            )
            for place, name in enumerate(partitions)
        )
        self._allow_same_user = allow_same_user
        self._grace_s = grace_s
        self._python = python
        self._runs = RunWatch()
        self._launched: list[subprocess.Popen[bytes]] = []  # detaching their runners; waited for on the next turn
        self._decided_at: tuple[int, str | None] | None = None
        self._archived_at = 0.0

    # -- the protocol ---------------------------------------------------------------------------------------------

    def submit_held(self, submission: Submission) -> str:
        with self._turn():
            known = self._spool.by_token(submission.token)
            if known is not None:
                return str(known.id)
            self._make_jobs_dir()
            user = job_user(submission.run_as, allow_same_user=self._allow_same_user)
            partition = check_submission(submission, user, self._machine, self._partitions, self._jobs_dir)
            job = SpoolJob(
                id=self._spool.new_id(at_least=0 if self._spool.jobs else self._newest_folder()),
                token=submission.token,
                name=submission.name,
                unix_user=user.name,
                uid=user.uid,
                gid=user.gid,
                account=submission.account,
                partition=partition.name,
                cpus=submission.cpus_per_node,
                accelerators=submission.accelerators_per_node,
                memory_bytes=submission.memory_bytes_per_node,
                time_limit_s=submission.time_limit_s if submission.time_limit_s is not None else partition.max_time_s,
                working_dir=submission.working_dir,
                submitted_at=time.time(),
            )
            try:
                self._spool.add(job, asdict(submission))
            except OSError as error:
                raise SubmitUncertain(f"the job could not be written to the spool: {error}") from error
            return str(job.id)

    def release(self, external_id: str) -> None:
        with self._turn():
            job = self._job(external_id)
            if job.state == JobState.PENDING and job.held:
                job.held = False
                job.line_seq = self._spool.last_seq + 1
                job.reason = f"in line for {amount_text(_amount(job))}, behind jobs that came first"
                self._spool.save(job)

    def hold(self, external_id: str) -> None:
        with self._turn():
            job = self._job(external_id)
            if job.state == JobState.PENDING and not job.held:
                job.held = True
                job.reason = "held"
                self._spool.save(job)

    def cancel(self, external_id: str, reason: str = "") -> None:
        with self._turn():
            self._cancel(self._job(external_id), reason)

    def find_by_token(self, token: str) -> ObservedJob | None:
        with self._turn():
            job = self._spool.by_token(token)
            return None if job is None else self._observed(job)

    def changes(self, cursor: str | None) -> Changes:
        with self._turn():
            self._start_waiting()  # before looking, so that what starts now is told now
            since, last = self._since(cursor), self._spool.last_seq
            changed = [job for job in self._spool.jobs.values() if job.seq > since] if since != last else []
            return Changes(
                jobs=tuple(self._observed(job) for job in changed),
                cursor=f"{self._spool.generation}-{last}",
                complete=since < 0,
            )

    def jobs(self, external_ids: Sequence[str]) -> list[ObservedJob]:
        with self._turn():
            found = (self._spool.get(int(external_id)) for external_id in external_ids if external_id.isdecimal())
            return [self._observed(job) for job in found if job is not None]

    def nodes(self) -> ClusterView:
        with self._turn():
            used = self._used()
            paused, drained = self._paused(), self._drained()
        closed = drained if paused is None else paused
        busy = bool(used.cpus + used.accelerators)
        full = used.cpus >= self._total.cpus
        open_state = "allocated" if full else "mixed" if busy else "idle"
        closed_state = "draining" if busy else "drained"
        node = ObservedNode(
            name=self._node_name,
            state=open_state if closed is None else closed_state,
            cpus=self._machine.cpus,
            memory_bytes=self._machine.memory_bytes,
            flags=("drain",) if closed is not None else (),
            reason=closed or "",
            cpus_used=used.cpus,
            memory_bytes_used=used.memory_bytes,
            accelerators=self._machine.accelerators,
            partitions=tuple(partition.name for partition in self._partitions),
        )
        return ClusterView(nodes=(node,), partitions=self._partitions, notes=self._notes())

    def set_nodes(self, names: Sequence[str], action: str, reason: str = "") -> None:
        strangers = sorted(set(names) - {self._node_name})
        if strangers:
            raise ActionRefused(f"this cluster has no node {strangers[0]}; its only node is {self._node_name}")
        if action not in {"drain", "resume"}:
            raise ActionRefused(f"the local scheduler cannot {action} a node")
        with self._turn():
            if action == "drain":
                write_bytes(self._drained_path, reason.encode())
            elif self._drained_path.exists():
                self._drained_path.unlink()
                sync_folder(self._spool.root)

    # -- beyond the protocol: starting and stopping the product. An operator's drain is another thing, and outlives it

    def pause(self, reason: str) -> None:
        """Start no more jobs until `resume`. What runs goes on."""
        with self._spool.locked():
            self._pause_path.write_text(reason)

    def resume(self) -> None:
        with self._spool.locked():
            self._pause_path.unlink(missing_ok=True)

    def end_running(self, reason: str, wait_s: float) -> int:
        """Cancel every running job and wait for the ends; returns how many still run after `wait_s`.

        Pause first, else the next jobs in line start in their place.
        """
        deadline = time.monotonic() + wait_s
        with self._turn():
            for job in self._running():
                self._cancel(job, reason)
        while True:
            with self._turn():
                left = len(self._running())
            if left == 0 or time.monotonic() > deadline:
                return left
            time.sleep(0.1)

    # -- a turn: what every call does -----------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[None]:
        try:
            with self._spool.locked():
                self._launched = [process for process in self._launched if process.poll() is None]
                self._look_after_running()
                yield
                self._start_waiting()
                self._archive_sometimes()
        except OSError as error:
            raise SchedulerUnavailable(f"the local scheduler's folders cannot be used: {error}") from error

    def _look_after_running(self) -> None:
        for job in self._running():
            run_folder = self._spool.run_folder(job.id)
            result = self._runs.result(job, run_folder)
            if result is not None:
                self._end(job, result)
            elif self._runs.needs_launch(job, run_folder):
                self._launch(job)

    def _start_waiting(self) -> None:
        now, closed = time.time(), self._why_closed()
        if self._decided_at == (self._spool.last_seq, closed):
            return
        waiting = self._waiting()
        if waiting and closed is not None:
            self._explain(waiting[0], f"no job starts: {closed}")
        elif waiting:
            running = [RunningJob(_amount(job), _ends_at(job)) for job in self._running()]
            line = [WaitingJob(job.id, _amount(job), job.time_limit_s) for job in waiting]
            decision = decide(self._total, running, line, now)
            for job_id in decision.start:
                self._start(self._spool.active[job_id], now)
            if decision.first_waiting is not None:
                self._explain(self._spool.active[decision.first_waiting], decision.reason)
        self._decided_at = (self._spool.last_seq, closed)

    def _waiting(self) -> list[SpoolJob]:
        """The line, without jobs that this machine has become too small for."""
        line = []
        for job in self._spool.active.values():
            if job.state != JobState.PENDING or job.held:
                continue
            if _amount(job).fits_in(self._total):
                line.append(job)
            else:
                shortage = shortage_text(_amount(job), self._total, self._total)
                self._explain(job, f"needs more than this machine has: {shortage}")
        return sorted(line, key=lambda job: job.line_seq)

    def _start(self, job: SpoolJob, now: float) -> None:
        running = self._running()
        taken_cpus = {cpu for other in running for cpu in other.cpu_ids}
        taken_cards = {card["uuid"] for other in running for card in other.cards}
        job.cpu_ids = [cpu for cpu in self._machine.cpu_ids if cpu not in taken_cpus][: job.cpus]
        free_cards = [card for card in self._machine.accelerators if card.uuid not in taken_cards]
        job.cards = [{"index": card.index, "uuid": card.uuid} for card in free_cards[: job.accelerators]]
        job.state, job.started_at, job.reason = JobState.RUNNING, now, "running"
        self._launch(job)

    def _launch(self, job: SpoolJob) -> None:
        submission = self._spool.submission(job.id)
        if submission is None:
            self._end(job, _not_started(JobState.LOST, "what was to run is gone from the spool"))
            return
        job.launches += 1
        self._spool.save(job)
        plan = make_plan(job, submission, self._folder(job), self._node_name, self._grace_s)
        try:
            self._launched.append(launch(self._spool.run_folder(job.id), plan, self._python))
        except OSError as error:  # tried again on the next turn, a few times
            logger.error("job %s: its runner could not be started: %s", job.id, error)

    def _cancel(self, job: SpoolJob, reason: str) -> None:
        if job.state == JobState.PENDING:
            self._end(job, _not_started(JobState.CANCELLED, cancelled_text(reason)))
        elif job.state == JobState.RUNNING:
            ask_to_end(self._spool.run_folder(job.id), reason)
            self._explain(job, "is being cancelled" + (f": {reason}" if reason else ""))

    def _end(self, job: SpoolJob, result: Result) -> None:
        job.state, job.reason, job.held = JobState(result.state), result.reason, False
        job.exit_code, job.exit_signal = result.exit_code, result.exit_signal
        job.ended_at = result.ended_at
        self._runs.forget(job)
        self._spool.save(job)

    def _explain(self, job: SpoolJob, reason: str) -> None:
        if job.reason != reason:
            job.reason = reason
            self._spool.save(job, durable=False)

    def _archive_sometimes(self) -> None:
        now = time.time()
        if not 0 <= now - self._archived_at < ARCHIVE_EVERY_S:
            self._archived_at = now
            self._spool.archive_old(now)

    # -- looking --------------------------------------------------------------------------------------------------

    def _job(self, external_id: str) -> SpoolJob:
        job = self._spool.get(int(external_id)) if external_id.isdecimal() else None
        if job is None:
            raise NoSuchJob(f"the local scheduler has no job {external_id}")
        return job

    def _running(self) -> list[SpoolJob]:
        return [job for job in self._spool.active.values() if job.state == JobState.RUNNING]

    def _used(self) -> Amount:
        return sum((_amount(job) for job in self._running()), Amount())

    def _since(self, cursor: str | None) -> int:
        """The change up to which the caller knows everything; -1 when it must be told all."""
        generation, _, seq = (cursor or "").partition("-")
        if generation != self._spool.generation or not seq.isdecimal():
            return -1
        return int(seq) if self._spool.archived_seq <= int(seq) <= self._spool.last_seq else -1

    def _observed(self, job: SpoolJob) -> ObservedJob:
        folder = str(self._folder(job)) if job.started_at is not None else None
        own = self._node_name
        return ObservedJob(
            external_id=str(job.id),
            token=job.token,
            name=job.name,
            unix_user=job.unix_user,
            state=job.state,
            held=job.held,
            reason=job.reason,
            account=job.account,
            partition=job.partition,
            nodes=(own,) if folder else (),
            accelerators=tuple(AllocatedAccelerator(own, card["index"], card["uuid"]) for card in job.cards),
            submitted_at=_time(job.submitted_at),
            started_at=_time(job.started_at),
            ended_at=_time(job.ended_at),
            exit_code=job.exit_code,
            exit_signal=job.exit_signal,
            folder=folder,
            stdout_path=folder and f"{folder}/stdout.log",
            stderr_path=folder and f"{folder}/stderr.log",
            metrics_path=folder and f"{folder}/metrics.jsonl",
        )

    def _notes(self) -> tuple[str, ...]:
        notes = ["This cluster is one machine. For more than one, connect a Slurm cluster."]
        if os.geteuid() != 0:
            own = user_name(os.geteuid())
            notes.append(
                f"Jobs run as {own}, the user that runs Switchyard itself, because it was not started as root: "
                "a job can read and change whatever Switchyard can."
            )
        return tuple(notes)

    # -- folders --------------------------------------------------------------------------------------------------

    @property
    def _pause_path(self) -> Path:
        return self._spool.root / "paused"

    @property
    def _drained_path(self) -> Path:
        return self._spool.root / "drained"

    def _paused(self) -> str | None:
        return _text_in(self._pause_path)

    def _drained(self) -> str | None:
        return _text_in(self._drained_path)

    def _why_closed(self) -> str | None:
        """Why no job starts: the product is being stopped, or an operator has drained the node."""
        paused, drained = self._paused(), self._drained()
        if paused is not None or drained is None:
            return paused
        return f"{self._node_name} is drained" + (f": {drained}" if drained else "")

    def _folder(self, job: SpoolJob) -> Path:
        return self._jobs_dir / str(job.id)

    def _make_jobs_dir(self) -> None:
        """Ours, and listable by nobody else: jobs of other users only pass through it to their own folder."""
        if not self._jobs_dir.exists():
            self._jobs_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._jobs_dir.chmod(0o711)

    def _newest_folder(self) -> int:
        names = os.listdir(self._jobs_dir)
        return max((int(name) for name in names if name.isdecimal()), default=0)


def _text_in(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return None


def _amount(job: SpoolJob) -> Amount:
    return Amount(job.cpus, job.memory_bytes or 0, job.accelerators)


def _ends_at(job: SpoolJob) -> float:
    return float("inf") if job.time_limit_s is None else (job.started_at or time.time()) + job.time_limit_s


def _not_started(state: JobState, reason: str) -> Result:
    now = time.time()
    return Result(state.value, reason, None, None, now, now)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

"""The spool folder of the local scheduler: one small file a job, a lock around every use, a log of what changed.

    lock                       held (flock) by whoever reads or changes anything here
    spool.json                 which spool this is; another one after it was wiped
    changes.log                an id a line for each change, so that other processes re-read only those files
    jobs/<id>.json             what is known of the job (SpoolJob)
    jobs/<id>.submission.json  what is to run; removed when it has ended, since environments hold secrets
    runs/<id>/                 the runner's folder while the job runs (local_runner.py)
    archive/<id>.json          jobs that ended long ago, found by id, and by token in archive/tokens/
    damaged/                   files that could not be read, kept to be looked at
    paused                     there while the product is stopped: no job starts; it says why
    drained                    there while an operator keeps the node from starting jobs; it says why

The files are the truth; each process keeps a copy of jobs/ in memory that the log keeps up to date.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from apps.jobs.schedulers.base import SchedulerUnavailable
from apps.jobs.schedulers.local_files import DamagedFile, read_json, write_json
from apps.jobs.states import JobState, is_final

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 15.0
LOG_LIMIT_BYTES = 1_000_000
KEPT_JOBS = 5_000  # ended jobs kept in jobs/ before the oldest are archived
KEPT_S = 14 * 86_400.0
KEPT_AT_LEAST_S = 3_600.0  # so that everyone who polls has seen the end of a job in a burst
_ID_EPOCH = 1_704_067_200  # 2024-01-01


@dataclass
class SpoolJob:
    """Times in seconds since 1970 (UTC). `seq` grows with every change in the spool, `line_seq` orders the line."""

    id: int
    token: str | None
    name: str
    unix_user: str | None
    uid: int | None
    gid: int | None
    account: str | None
    partition: str | None
    cpus: int
    accelerators: int
    memory_bytes: int | None
    time_limit_s: int | None
    working_dir: str | None
    submitted_at: float
    state: JobState = JobState.PENDING
    held: bool = True
    reason: str = "held"
    line_seq: int = 0
    launches: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    cpu_ids: list[int] = field(default_factory=list)
    cards: list[dict[str, Any]] = field(default_factory=list)  # {"index": 0, "uuid": "GPU-..."}
    seq: int = 0

    @property
    def is_final(self) -> bool:
        return is_final(self.state)


class Spool:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.generation = ""
        self.last_seq = 0
        self.archived_seq = 0
        self.jobs: dict[int, SpoolJob] = {}
        self.active: dict[int, SpoolJob] = {}  # those that have not ended
        self._tokens: dict[str, int] = {}
        self._last_id = 0
        self._log_inode = 0
        self._log_size = -1

    # -- lock and memory ------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Everything else of this class is used inside. Raises SchedulerUnavailable when the spool cannot be used."""
        try:
            fd = self._lock()
        except OSError as error:
            raise SchedulerUnavailable(f"the spool folder cannot be used: {error}") from error
        try:
            try:
                self._refresh()
            except OSError as error:
                raise SchedulerUnavailable(f"the spool folder cannot be read: {error}") from error
            yield
        except BaseException:
            self._log_size = -1  # what is in memory may be half a change: read it all again
            raise
        finally:
            os.close(fd)

    def _lock(self) -> int:
        path = self.root / "lock"
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        wait_s = 0.0005
        while True:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(FileNotFoundError):
                    if os.stat(path).st_ino == os.fstat(fd).st_ino:  # else the spool was wiped under us
                        return fd
            except BlockingIOError:
                pass
            os.close(fd)
            if time.monotonic() > deadline:
                raise SchedulerUnavailable(f"the spool folder has been locked for {LOCK_TIMEOUT_S:g} s")
            time.sleep(wait_s)
            wait_s = min(0.02, wait_s * 2)

    def _refresh(self) -> None:
        try:
            log = os.stat(self.root / "changes.log")
        except FileNotFoundError:
            self._load_all()
            return
        if log.st_ino != self._log_inode or log.st_size < self._log_size or self._log_size < 0:
            self._load_all()
        elif log.st_size > self._log_size:
            with open(self.root / "changes.log", "rb") as file:
                file.seek(self._log_size)
                lines = file.read(log.st_size - self._log_size).split()
            for job_id in sorted({int(line) for line in lines if line.isdigit()}):
                self._load(job_id)
            self._log_size = log.st_size

    def _load_all(self) -> None:
        for name in ("jobs", "runs", "archive/tokens", "damaged"):
            (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        head = self._read_or_set_aside(self.root / "spool.json") or {}
        if not isinstance(head.get("generation"), str):
            head = {"generation": secrets.token_hex(6), "archived_seq": 0}
            write_json(self.root / "spool.json", head)
        self.generation, self.archived_seq = head["generation"], int(head.get("archived_seq", 0))
        self.jobs, self.active, self._tokens = {}, {}, {}
        names = os.listdir(self.root / "jobs")
        for job_id in sorted({int(name.partition(".")[0]) for name in names if name[:1].isdigit()}):
            self._load(job_id)
        log = os.open(self.root / "changes.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._log_inode, self._log_size = os.fstat(log).st_ino, os.fstat(log).st_size
        os.close(log)

    def _load(self, job_id: int) -> None:
        path = self._path(job_id)
        self._forget(job_id)
        was_written = path.exists()
        job = self._read_job(path)
        if job is not None and job.id == job_id:
            self._remember(job)
        elif not was_written and not self.run_folder(job_id).exists():
            # Whoever was adding it died between its two files. Nobody was told of it, so it never was.
            self._submission_path(job_id).unlink(missing_ok=True)
        elif self._submission_path(job_id).exists():
            self.save(self._rebuild(job_id))

    def _rebuild(self, job_id: int) -> SpoolJob:
        """A job whose own file is gone or damaged: running if it has been started, else nobody knows what was meant."""
        data = self._read_or_set_aside(self._submission_path(job_id)) or {}
        job = SpoolJob(
            id=job_id,
            token=data.get("token"),
            name=str(data.get("name") or job_id),
            unix_user=data.get("unix_user"),
            uid=data.get("uid"),
            gid=data.get("gid"),
            account=data.get("account"),
            partition=data.get("partition"),
            cpus=int(data.get("cpus_per_node") or 1),
            accelerators=0,
            memory_bytes=data.get("memory_bytes_per_node"),
            time_limit_s=data.get("time_limit_s"),
            working_dir=data.get("working_dir"),
            submitted_at=time.time(),
            held=False,
            seq=self.last_seq + 1,
        )
        if self.run_folder(job_id).exists():
            job.state, job.started_at, job.launches = JobState.RUNNING, job.submitted_at, 1
            job.reason = "running; its file in the spool was damaged"
        else:
            job.state, job.ended_at = JobState.LOST, job.submitted_at
            job.reason = "its file in the spool was damaged, so nobody knows whether it was to run"
        return job

    def _remember(self, job: SpoolJob) -> None:
        self.jobs[job.id] = job
        if job.token:
            self._tokens[job.token] = job.id
        if job.is_final:
            self.active.pop(job.id, None)
        else:
            self.active[job.id] = job
        self.last_seq = max(self.last_seq, job.seq)
        self._last_id = max(self._last_id, job.id)

    def _forget(self, job_id: int) -> None:
        job = self.jobs.pop(job_id, None)
        self.active.pop(job_id, None)
        if job is not None and job.token:
            self._tokens.pop(job.token, None)

    # -- reading --------------------------------------------------------------------------------------------------

    def get(self, job_id: int) -> SpoolJob | None:
        """A job by its id, also an archived one."""
        return self.jobs.get(job_id) or self._read_job(self.root / "archive" / f"{job_id}.json")

    def by_token(self, token: str) -> SpoolJob | None:
        """A job by its token, also an archived one."""
        job_id = self._tokens.get(token)
        return self.jobs[job_id] if job_id is not None else self._read_job(self._token_path(token))

    def submission(self, job_id: int) -> dict[str, Any] | None:
        """What is to run; None when it is gone or damaged."""
        return self._read_or_set_aside(self._submission_path(job_id))

    def run_folder(self, job_id: int) -> Path:
        return self.root / "runs" / str(job_id)

    # -- changing -------------------------------------------------------------------------------------------------

    def new_id(self, at_least: int = 0) -> int:
        """An id no job had before, not even in a spool that was wiped: ids start from the clock, 100 a second."""
        return max(self._last_id, at_least, int((time.time() - _ID_EPOCH) * 100) if not self._last_id else 0) + 1

    def add(self, job: SpoolJob, submission: dict[str, Any]) -> None:
        """A new job. Whole and on the disk when this returns; not there at all when it raises before the last write."""
        write_json(self._submission_path(job.id), submission)
        self.save(job)

    def save(self, job: SpoolJob, *, durable: bool = True) -> None:
        """Write a changed job, for everybody to see. `durable=False` where losing it in a power cut is harmless."""
        job.seq = max(self.last_seq + 1, int(time.time() * 1e6))
        self._log(job.id)  # first: a crash between the two makes others read one file for nothing
        write_json(self._path(job.id), asdict(job), durable=durable)
        self._remember(job)
        if job.is_final:
            shutil.rmtree(self.run_folder(job.id), ignore_errors=True)
            self._submission_path(job.id).unlink(missing_ok=True)

    def archive_old(self, now: float) -> None:
        """Move jobs that ended long ago, or the oldest of too many, out of the way. Their folders stay."""
        ended = sorted(
            (job for job in self.jobs.values() if job.is_final and job.id != self._last_id),
            key=lambda job: job.ended_at or 0.0,
        )
        surplus = len(ended) - KEPT_JOBS
        old = [
            job
            for place, job in enumerate(ended)
            if (age_s := now - (job.ended_at or 0.0)) > KEPT_S or (place < surplus and age_s > KEPT_AT_LEAST_S)
        ]
        if not old:
            return
        self.archived_seq = max(self.archived_seq, *(job.seq for job in old), 0)
        write_json(self.root / "spool.json", {"generation": self.generation, "archived_seq": self.archived_seq})
        for job in old:
            self._log(job.id)
            if job.token:
                with suppress(FileExistsError):
                    os.link(self._path(job.id), self._token_path(job.token))
            os.replace(self._path(job.id), self.root / "archive" / f"{job.id}.json")
            self._forget(job.id)

    def _log(self, job_id: int) -> None:
        path = self.root / "changes.log"
        if self._log_size > LOG_LIMIT_BYTES:
            path.unlink()  # a new file tells everybody to read everything once
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"\n%d\n" % job_id)
            status = os.fstat(fd)
            self._log_inode, self._log_size = status.st_ino, status.st_size
        finally:
            os.close(fd)

    # -- files ----------------------------------------------------------------------------------------------------

    def _path(self, job_id: int) -> Path:
        return self.root / "jobs" / f"{job_id}.json"

    def _submission_path(self, job_id: int) -> Path:
        return self.root / "jobs" / f"{job_id}.submission.json"

    def _token_path(self, token: str) -> Path:
        name = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        return self.root / "archive" / "tokens" / f"{name}.json"

    def _read_job(self, path: Path) -> SpoolJob | None:
        data = self._read_or_set_aside(path)
        if data is None:
            return None
        try:
            job = SpoolJob(**data)
            job.state = JobState(job.state)
        except (TypeError, ValueError) as error:
            self._set_aside(path, f"{path.name}: {error}")
            return None
        return job

    def _read_or_set_aside(self, path: Path) -> dict[str, Any] | None:
        try:
            return read_json(path)
        except DamagedFile as error:
            self._set_aside(path, str(error))
            return None

    def _set_aside(self, path: Path, why: str) -> None:
        logger.error("damaged file in the spool set aside: %s", why)
        with suppress(OSError):
            os.replace(path, self.root / "damaged" / f"{time.time_ns()}-{path.name}")

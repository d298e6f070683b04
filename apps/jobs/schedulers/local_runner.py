"""The process that watches one job of the local scheduler: `python -I -S local_runner.py RUN_FOLDER`.

It detaches, starts the job under the job's own uid, enforces its limits, carries out cancel requests, kills what is
left of the job's process tree and, as its last act, writes how the job ended. It lives on when whoever started it
dies. Standard library only, since it runs without site-packages. The caller passes a locked file as an inherited fd;
the lock is held as long as the runner lives.

Files of the run folder, which the job cannot reach:
    plan.json      what to do (Plan), read once
    runner.json    this process, written before the job starts
    cancel         made by the scheduler: end the job; the text is the reason
    result.json    how the job ended (Result), written last
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

if not __package__:  # started as a plain script: find our siblings, behind the standard library
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from apps.jobs.schedulers import local_procs
from apps.jobs.schedulers.local_files import read_json, write_json

POLL_S = 0.25
LEFTOVER_GRACE_S = 2.0  # for processes that outlive the job's main process
KILL_TIMEOUT_S = 10.0
OPEN_FILES = 65536


@dataclass(frozen=True)
class Plan:
    """`uid` None: stay who we are. `script` may hold lone surrogates for bytes that are not UTF-8."""

    external_id: str
    script: str
    environment: dict[str, str]
    folder: str
    working_dir: str
    uid: int | None
    gid: int | None
    cpu_ids: list[int]
    time_limit_s: float | None
    memory_limit_bytes: int | None
    grace_s: float


@dataclass(frozen=True)
class Result:
    """`state` is a JobState's value; `exit_code` and `exit_signal` are of the main process."""

    state: str
    reason: str
    exit_code: int | None
    exit_signal: int | None
    started_at: float  # seconds since 1970, UTC
    ended_at: float


class StartFailed(Exception):
    """The job's script could not be started; the text says why."""


class Runner:
    def __init__(self, run_folder: Path, plan: Plan) -> None:
        self.run_folder = run_folder
        self.plan = plan
        self.main_pid = 0
        self.main_status: int | None = None

    def run(self) -> Result:
        """Start the job, watch it, end it. Returns when none of its processes is left."""
        started_at = time.time()
        stop = self._stop_wanted()
        if stop is None:
            self.main_pid = _start_job(self.plan)
            stop = self._watch()
        if stop is None:
            self._end_tree(LEFTOVER_GRACE_S)
            state, reason = _how_it_ended(self.main_status or 0)
        else:
            self._end_tree(self.plan.grace_s)
            state, reason = stop
        code = None if self.main_status is None else os.waitstatus_to_exitcode(self.main_status)
        return Result(
            state=state,
            reason=reason,
            exit_code=code if code is not None and code >= 0 else None,
            exit_signal=-code if code is not None and code < 0 else None,
            started_at=started_at,
            ended_at=time.time(),
        )

    def _watch(self) -> tuple[str, str] | None:
        """Wait for the main process's end (None) or for a reason to end it (state, reason)."""
        limit_s = self.plan.time_limit_s
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while True:
            wait_s = POLL_S if deadline is None else max(0.0, min(POLL_S, deadline - time.monotonic()))
            told = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}, wait_s)
            self._reap()
            if self.main_status is not None:
                return None
            if (stop := self._stop_wanted()) is not None:
                return stop
            if told is not None and told.si_signo != signal.SIGCHLD:
                return "cancelled", f"cancelled: {signal.Signals(told.si_signo).name} reached the job's runner"
            if deadline is not None and time.monotonic() >= deadline:
                return "timed_out", f"time limit of {limit_s:g} s reached"
            if (used := self._memory_over_limit()) is not None:
                limit = size_text(self.plan.memory_limit_bytes or 0)
                return "out_of_memory", f"memory limit of {limit} exceeded: {size_text(used)} in use"

    def _stop_wanted(self) -> tuple[str, str] | None:
        reason = cancel_reason(self.run_folder)
        return None if reason is None else ("cancelled", cancelled_text(reason))

    def _memory_over_limit(self) -> int | None:
        limit = self.plan.memory_limit_bytes
        if limit is None:
            return None
        procs = local_procs.descendants(os.getpid())
        if local_procs.resident_bytes(procs) <= limit:
            return None
        used = local_procs.proportional_bytes(procs)  # the quick figure counts shared memory several times
        return used if used > limit else None

    def _end_tree(self, grace_s: float) -> None:
        """TERM to every process of the job, time to tidy up, KILL."""
        for proc in self._tree():
            local_procs.send_signal(proc, signal.SIGTERM)
            local_procs.send_signal(proc, signal.SIGCONT)
        deadline = time.monotonic() + grace_s
        while self._tree() and time.monotonic() < deadline:
            signal.sigtimedwait({signal.SIGCHLD}, 0.05)
            self._reap()
        local_procs.kill_all(self._tree, KILL_TIMEOUT_S, self._reap)
        self._reap()

    def _tree(self) -> list[local_procs.Proc]:
        return local_procs.descendants(os.getpid())

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.main_pid:
                    self.main_status = status


def cancel_reason(run_folder: Path) -> str | None:
    """The reason given with a cancel request, None when there is no request."""
    try:
        return (run_folder / "cancel").read_text(errors="replace")
    except OSError:
        return None


def cancelled_text(reason: str) -> str:
    return f"cancelled: {reason}" if reason else "cancelled"


def size_text(size_bytes: float) -> str:
    """A size for people: "512 MiB", "1.5 GiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.4g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.4g} TiB"


def signal_text(number: int) -> str:
    """ "9 (SIGKILL)" """
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def _how_it_ended(status: int) -> tuple[str, str]:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return "failed", f"killed by signal {signal_text(-code)}"
    explained = {126: ": a command may not be executed", 127: ": a command was not found"}
    return ("completed" if code == 0 else "failed"), f"exit code {code}{explained.get(code, '')}"


def _start_job(plan: Plan) -> int:
    """Make the job's folder and start its script in it; returns the pid. Raises StartFailed."""
    folder = Path(plan.folder)
    try:
        stdout_fd, stderr_fd = _make_folder(folder, plan)
    except OSError as error:
        raise StartFailed(f"the job's folder could not be made: {error.strerror}") from error
    report_in, report_out = os.pipe()
    runner_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_job(plan, (stdout_fd, stderr_fd, report_out), runner_pid)
    for fd in (stdout_fd, stderr_fd, report_out):
        os.close(fd)
    with os.fdopen(report_in) as report:
        trouble = report.read()
    if trouble:
        os.waitpid(pid, 0)
        raise StartFailed(trouble)
    return pid


def _make_folder(folder: Path, plan: Plan) -> tuple[int, int]:
    """The folder with script, tmp and logs; returns the open logs.

    It is given to the job's owner last: until then nobody else can put a link in our way.
    """
    if folder.exists():  # from a runner that died before it started anything
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    (folder / "tmp").mkdir(mode=0o700)
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(folder / "script", new, 0o700), "wb") as script:
        script.write(plan.script.encode("utf-8", "surrogateescape"))
    stdout_fd = os.open(folder / "stdout.log", new | os.O_APPEND, 0o600)
    stderr_fd = os.open(folder / "stderr.log", new | os.O_APPEND, 0o600)
    if plan.uid is not None and plan.gid is not None:
        for name in ("tmp", "script", "stdout.log", "stderr.log", "."):
            os.chown(folder / name, plan.uid, plan.gid, follow_symlinks=False)
    return stdout_fd, stderr_fd


def _become_job(plan: Plan, fds: tuple[int, int, int], runner_pid: int) -> NoReturn:
    """In the forked child: give up everything that is the product's and become the job's script."""
    doing = "its processes could not be separated from the product's"
    try:
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(fds[0], 1)
        os.dup2(fds[1], 2)
        os.dup2(fds[2], 3, inheritable=False)
        os.closerange(4, OPEN_FILES)
        _reset_limits(plan)
        if plan.uid is not None and plan.gid is not None:
            doing = f"it could not be given the identity of uid {plan.uid}"
            os.setgroups([])
            os.setresgid(plan.gid, plan.gid, plan.gid)
            os.setresuid(plan.uid, plan.uid, plan.uid)
        local_procs.forbid_new_privileges()
        local_procs.die_with_parent()
        if os.getppid() != runner_pid:
            os._exit(127)
        doing = f"its working folder {plan.working_dir} cannot be entered"
        os.chdir(plan.working_dir)
        script = os.path.join(plan.folder, "script")
        doing = f"its script cannot be executed (first line: {plan.script.splitlines()[0][:200]!r})"
        os.execve(script, [script], plan.environment)  # noqa: S606
    except Exception as error:
        missing = isinstance(error, OSError) and error.errno == errno.ENOENT
        why = "not found" if missing else getattr(error, "strerror", None) or str(error)
        os.write(3, f"{doing}: {why}".encode(errors="replace"))
    finally:
        os._exit(127)


def _reset_limits(plan: Plan) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, a job must not
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    os.umask(0o022)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
    if plan.cpu_ids:
        with suppress(OSError):  # a CPU that has gone off line is no reason not to run
            os.sched_setaffinity(0, plan.cpu_ids)


def _detach() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def main(run_folder: Path) -> None:
    _detach()
    os.umask(0o077)
    local_procs.become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT})
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-500")  # when memory runs out the job goes first
    plan = Plan(**(read_json(run_folder / "plan.json") or {}))
    me = local_procs.find_proc(os.getpid())
    assert me is not None
    identity = {"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": local_procs.boot_id()}
    write_json(run_folder / "runner.json", identity)
    runner = Runner(run_folder, plan)
    started_at = time.time()
    try:
        result = runner.run()
    except StartFailed as error:
        result = Result("failed", f"the job could not be started: {error}", None, None, started_at, time.time())
    except Exception as error:
        traceback.print_exc()
        local_procs.kill_all(lambda: local_procs.descendants(os.getpid()), KILL_TIMEOUT_S)
        result = Result("lost", f"the job's runner failed: {error!r}", None, None, started_at, time.time())
    write_json(run_folder / "result.json", asdict(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""One process that starts the services, the web server, the workers and beat as its own children, and keeps them up."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from lab.embedded.instance import BASE_DIR, DATABASE, MARKER, Instance
from lab.embedded.services import Postgres, ServiceError, Valkey, end_process, start, stop

DEFAULT_PORT = 8420
PORTS_TO_TRY = 20
MAX_LOG_BYTES = 20 * 1024 * 1024
STOP_REASON = "Switchyard was stopped"
_JOB_MARKER = b"SWITCHYARD_JOB="


@dataclass
class Child:
    """A process to keep up. It is started again after 1, 2, 4 ... 30 s; a minute of life counts as well."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    not_before: float = 0.0


@dataclass
class Supervisor:
    instance: Instance
    bind: str
    children: list[Child] = field(default_factory=list)
    services: dict[str, tuple[Postgres | Valkey, subprocess.Popen[bytes]]] = field(default_factory=dict)
    is_stopping: bool = False

    def run(self) -> int:
        """Until SIGTERM or SIGINT; returns the exit code. The caller holds the instance's lock."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self.end_orphans()
        try:
            self._start_all()
            while not self.is_stopping:
                self._look_after_all()
                time.sleep(0.3)
            return 0
        except (ServiceError, subprocess.CalledProcessError) as error:
            self._say(f"cannot go on: {error}")
            self._write_status("failed", str(error))
            return 1
        finally:
            self._stop_all()

    # -- starting -------------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        env = self.instance.environment()
        self._write_status("starting PostgreSQL")
        for service in (self.instance.postgres(), self.instance.valkey()):
            _cut_log(service.log_path)
            self.services[service.name] = (service, start(service, env=env))
        postgres = self.services["postgres"][0]
        assert isinstance(postgres, Postgres)
        postgres.create_database(DATABASE)
        copy_examples(self.instance.state_dir / "examples")
        for words, command in (
            ("bringing the database up to date", ["migrate", "--no-input", "-v", "0"]),
            ("collecting static files", ["collectstatic", "--no-input", "-v", "0", *_NOT_SERVED]),
            ("making the first rows", ["prepare"]),
        ):
            self._write_status(words)
            self._manage(command)
        python = sys.executable
        self.children = [
            Child("web", [python, "-m", "gunicorn", "config.wsgi", "-b", self.bind, *_GUNICORN]),
            Child("worker", _worker("default", 2)),
            Child("worker-local", _worker("cluster.local", 2)),
            Child("worker-clusters", [python, "-m", "workers.clusters"]),
            Child("beat", [python, "-m", "celery", "-A", "workers.app", "beat", "-s", self._beat_file(), "--pidfile="]),
        ]
        for child in self.children:
            self._start_child(child)
        self._wait_for_web()
        self._write_status("running")

    def _beat_file(self) -> str:
        return str(self.instance.state_dir / "beat")

    def _start_child(self, child: Child) -> None:
        path = self.instance.log_path(child.name)
        _cut_log(path)
        with path.open("ab") as log:
            child.process = subprocess.Popen(
                child.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=BASE_DIR,
                env=self.instance.environment(),
                start_new_session=True,
            )
        child.started_at = time.monotonic()

    def _wait_for_web(self) -> None:
        deadline = time.monotonic() + 60
        host, _, port = self.bind.rpartition(":")
        while not self.is_stopping:
            # A whole answer: the first takes seconds where no compiled code lies around yet.
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=15)
                connection.request("GET", "/healthz")
                connection.getresponse().read()
                return
            web = self.children[0].process
            if time.monotonic() > deadline or web is None or web.poll() is not None:
                raise ServiceError(f"the web server does not answer; see {self.instance.log_path('web')}")
            time.sleep(0.1)

    def _manage(self, arguments: list[str], *, must_work: bool = True, timeout_s: float = 300) -> None:
        command = [sys.executable, "manage.py", *arguments]
        with self.instance.log_path("manage").open("ab") as log:
            done = subprocess.run(
                command, cwd=BASE_DIR, env=self.instance.environment(), stdout=log, stderr=log, timeout=timeout_s
            )
        if done.returncode != 0 and must_work:
            tail = self.instance.log_path("manage").read_text(errors="replace")[-1500:]
            raise ServiceError(f"manage.py {' '.join(arguments)} failed:\n{tail}")

    # -- running --------------------------------------------------------------------------------------------------

    def _look_after_all(self) -> None:
        now = time.monotonic()
        for name, (service, process) in list(self.services.items()):
            if process.poll() is not None:
                self._say(f"{name} ended with code {process.returncode}; starting it again")
                try:
                    self.services[name] = (service, start(service, env=self.instance.environment()))
                except ServiceError as error:
                    self._say(f"{error}; trying again")
                    time.sleep(2)
                self._write_status("running")
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                lived_s = now - child.started_at
                child.failures = 1 if lived_s > 60 else child.failures + 1
                child.not_before = now + min(30.0, 2.0 ** (child.failures - 1))
                self._say(f"{child.name} ended with code {child.process.returncode}; starting it again")
                child.process = None
            if child.process is None and now >= child.not_before:
                self._start_child(child)
                self._write_status("running")

    # -- stopping -------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_stopping = True

    def _stop_all(self) -> None:
        self._write_status("stopping")
        if "postgres" in self.services and self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._manage(["stop_local_jobs", "--reason", STOP_REASON], must_work=False, timeout_s=60)
        for child in self.children:
            _end_child(child.process)
        for name in ("valkey", "postgres"):
            if name in self.services:
                stop(*self.services[name])
        self.instance.status_path.unlink(missing_ok=True)
        self._say("stopped")

    def end_orphans(self) -> None:
        """Processes of this install whose supervisor was killed. Jobs are not among them: they go on, to be adopted."""
        marker = f"{MARKER}={self.instance.name}".encode()
        for pid in _processes_with(marker):
            self._say(f"ending process {pid}, left over from a supervisor that was killed")
            end_process(pid, signal.SIGTERM, 10)

    # -- telling --------------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}", flush=True)

    def _write_status(self, state: str, error: str = "") -> None:
        processes = {name: process.pid for name, (_, process) in self.services.items()}
        processes |= {child.name: child.process.pid for child in self.children if child.process is not None}
        status = {"pid": os.getpid(), "state": state, "url": f"http://{self.bind}", "processes": processes}
        status |= {"error": error} if error else {}
        temporary = self.instance.status_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(status))
        temporary.replace(self.instance.status_path)


_GUNICORN = [*("-w", "2", "--threads", "4", "--worker-class", "gthread", "--timeout", "60", "--graceful-timeout", "5")]
# The documentation's viewer and the charts are served; the rest of what their wheels hold is not.
_NOT_SERVED = [*("-i", "widgetbundle.js", "-i", "datasets", "-i", "templates", "-i", "redoc", "-i", "rest_framework")]


def _worker(queue: str, processes: int) -> list[str]:
    return [
        *(sys.executable, "-m", "celery", "-A", "workers.app", "worker", "-Q", queue, "-c", str(processes)),
        *("-n", f"{queue}@switchyard", "--without-gossip", "--without-mingle", "-l", "WARNING"),
    ]


@contextlib.contextmanager
def sole_supervisor(instance: Instance) -> Iterator[IO[Any] | None]:
    """The instance's lock, held while inside; yields None when another supervisor has it."""
    with instance.lock_path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        # Whoever finds the lock taken reads here by whom: the status file may be that of a supervisor that was killed.
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield lock


def supervisor_pid(instance: Instance) -> int | None:
    """The process that holds the lock; None when nobody does."""
    try:
        with instance.lock_path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                return int(lock.read() or 0) or None
    except (FileNotFoundError, ValueError):
        return None


def free_bind(wanted: str | None) -> str:
    """`wanted` as it is, else 127.0.0.1 with the first free port from 8420 on."""
    if wanted:
        return wanted if ":" in wanted else f"{wanted}:{DEFAULT_PORT}"
    for port in range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TO_TRY):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return f"127.0.0.1:{port}"
    raise ServiceError(f"no free port from {DEFAULT_PORT} on; set SWITCHYARD_BIND=127.0.0.1:<port>")


def _end_child(process: subprocess.Popen[bytes] | None) -> None:
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _processes_with(marker: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker in variables and not any(v.startswith(_JOB_MARKER) for v in variables):
            found.append(int(entry.name))
    # Whoever started this supervisor may carry the marker too; it is not an orphan.
    return [pid for pid in found if pid not in _ancestors()]


def _ancestors() -> set[int]:
    pids, pid = set(), os.getpid()
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        pids.add(pid)
    return pids


def _cut_log(path: Path) -> None:
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))


def copy_examples(target: Path) -> None:
    """Jobs of other uids read them here: the checkout itself may be closed to them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(BASE_DIR / "examples", target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)

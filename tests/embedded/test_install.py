"""A whole install in a folder of its own: started, killed in every way, and stopped without a trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.embedded.instance import MARKER, Instance
from lab.embedded.services import Postgres, ServiceError, Valkey, socket_dir_for, start, stop
from tests.harness import BASE_DIR
from tests.waiting import wait_until

pytestmark = pytest.mark.faults


class Install:
    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        hidden = ("SWITCHYARD_", "DATABASE_URL", "REDIS_URL", "DJANGO_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        self.env = {**clean, "SWITCHYARD_STATE_DIR": str(state_dir)}

    def run(self, *arguments: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lab.embedded", *arguments]
        return subprocess.run(command, cwd=BASE_DIR, env=self.env, capture_output=True, text=True, timeout=timeout_s)

    @property
    def status(self) -> dict:
        return json.loads((self.state_dir / "supervisor.json").read_text())

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.status["url"] + "/healthz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def processes(self) -> list[int]:
        """Those that carry the install's mark, and its servers, which overwrite their environment."""
        marker = f"{MARKER}={Instance(self.state_dir).name}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                is_marked = marker in (entry / "environ").read_bytes().split(b"\0")
                is_server = str(self.state_dir).encode() in (entry / "cmdline").read_bytes()
                alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            except OSError:
                continue
            if alive and (is_marked or is_server) and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        return found

    def run_job(self, script: str) -> str:
        program = (
            "from apps.jobs.first_rows import make_first_rows; from apps.jobs.local_cluster import open_local_cluster;"
            "from apps.jobs.actions import submit_job; from apps.jobs.spec import JobSpec;"
            "f = make_first_rows();"
            f"spec = JobSpec('n', 'test', {script!r}, time_limit_s=600);"
            "print('JOB', submit_job(f.project, open_local_cluster(), spec, by=f.operator).public_id)"
        )
        done = self.run("manage", "shell", "-c", program)
        return done.stdout.split("JOB ")[1].split()[0]

    def job(self, public_id: str) -> list[str]:
        program = (
            f"from apps.jobs.models import Job; j = Job.objects.get(public_id={public_id!r});"
            "print('STATE', j.state, j.attempts.count(), j.reason.replace(' ', '_') or '-')"
        )
        done = self.run("manage", "shell", "-c", program)
        assert "STATE " in done.stdout, done.stderr
        return done.stdout.split("STATE ")[1].split()


@pytest.fixture
def install(jobs_root: Path) -> Iterator[Install]:
    # Longer than a socket's path may be, and open to the users that jobs run as.
    made = Install(jobs_root / ("deep" * 20) / ("folder" * 12) / "var")
    yield made
    stopped = made.run("stop")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert made.processes() == []


def test_the_life_of_an_install(install: Install):
    assert install.run("status").returncode == 3
    started = install.run("start")
    assert started.returncode == 0, started.stderr
    assert install.answers()
    url = install.status["url"]

    # A second start says so.
    again = install.run("start")
    assert (again.returncode, url in again.stdout) == (0, True)

    # The first password is in a file that its owner alone can read.
    password = install.state_dir / "first_password"
    assert password.stat().st_mode & 0o777 == 0o600
    assert password.read_text().strip() not in started.stdout
    assert (install.state_dir / "secret_key").stat().st_mode & 0o777 == 0o600

    # Each child that is killed comes back, and what it served goes on.
    for name in ("postgres", "valkey", "web", "worker", "worker-local", "beat"):
        pid = install.status["processes"][name]
        os.kill(pid, signal.SIGKILL)

        def is_back(name: str = name, pid: int = pid) -> bool:
            return install.status["processes"].get(name, pid) != pid

        wait_until(is_back, 60)
        wait_until(install.answers, 60)

    # The supervisor is killed: a running job goes on, and the next start adopts it and everything else.
    job = install.run_job("sleep 8")
    wait_until(lambda: install.job(job)[0] == "running", 60, every_s=0.5)
    os.kill(install.status["pid"], signal.SIGKILL)
    time.sleep(0.5)
    assert install.run("start").returncode == 0
    wait_until(install.answers, 60)
    wait_until(lambda: install.job(job)[0] == "completed", 60, every_s=0.5)
    assert install.job(job)[:2] == ["completed", "1"]

    # Stopping ends running jobs, and says why.
    job = install.run_job("sleep 500")
    wait_until(lambda: install.job(job)[0] == "running", 60, every_s=0.5)
    assert install.run("stop").returncode == 0
    assert install.processes() == []
    assert install.run("start").returncode == 0
    state, _, reason = install.job(job)
    assert (state, reason) == ("cancelled", "cancelled:_Switchyard_was_stopped")


def test_a_stop_after_the_supervisor_was_killed_leaves_nothing(install: Install):
    assert install.run("start").returncode == 0
    os.kill(install.status["pid"], signal.SIGKILL)
    assert install.processes() != []
    assert install.run("stop").returncode == 0
    assert install.processes() == []


def test_a_port_that_is_taken_is_left_alone(tmp_path: Path):
    import socket

    from lab.embedded.supervisor import DEFAULT_PORT, free_bind

    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            stranger.bind(("127.0.0.1", DEFAULT_PORT))
            stranger.listen()
        except OSError:
            pass  # somebody has it already, which serves as well
        assert free_bind(None) != f"127.0.0.1:{DEFAULT_PORT}"
    assert free_bind("0.0.0.0") == f"0.0.0.0:{DEFAULT_PORT}"


def test_postgresql_comes_back_after_being_killed_with_every_commit(jobs_root: Path):
    sockets = socket_dir_for(f"t{os.getpid()}")
    service = Postgres(jobs_root / "pg", sockets, jobs_root / "pg.log")
    process = start(service)
    try:
        service.create_database("one")
        connection = service.connect("one")
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (n int)")
            for n in range(200):
                cursor.execute("INSERT INTO t VALUES (%s)", [n])
        process.kill()
        process.wait()
        process = start(service)
        with service.connect("one") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*), max(n) FROM t")
            assert cursor.fetchone() == (200, 199)
    finally:
        stop(service, process)
        sockets.rmdir() if not any(sockets.iterdir()) else None


def test_an_initdb_that_was_cut_short_is_done_again(jobs_root: Path):
    sockets = socket_dir_for(f"u{os.getpid()}")
    service = Postgres(jobs_root / "pg", sockets, jobs_root / "pg.log", durable=False)
    (jobs_root / "pg" / "base").mkdir(parents=True)
    stop(service, start(service))
    assert (jobs_root / "pg" / "PG_VERSION").exists()


def test_valkey_keeps_what_it_was_told_and_survives_a_torn_file(tmp_path: Path):
    import redis

    sockets = socket_dir_for(f"v{os.getpid()}")
    service = Valkey(tmp_path / "valkey", sockets, tmp_path / "valkey.log")
    process = start(service)
    client = redis.Redis(unix_socket_path=str(service.socket))
    client.set("a", "1")
    time.sleep(1.2)  # appendfsync everysec
    process.kill()
    process.wait()
    (log,) = (tmp_path / "valkey" / "appendonlydir").glob("*.incr.aof")
    with log.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$1\r\nb")
    process = start(service)
    assert redis.Redis(unix_socket_path=str(service.socket)).get("a") == b"1"
    stop(service, process)


def test_a_socket_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path)) if len(str(tmp_path)) < 50 else monkeypatch.setenv(
        "XDG_RUNTIME_DIR", "/tmp"
    )
    name = f"w{os.getpid()}"
    path = socket_dir_for(name)
    path.rmdir()
    (target := tmp_path / "elsewhere").mkdir()
    path.symlink_to(target)
    try:
        with pytest.raises(ServiceError, match="belongs to somebody else"):
            socket_dir_for(name)
    finally:
        path.unlink()

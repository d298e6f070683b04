"""One real PostgreSQL and one real Valkey for the whole run, and real workers for who asks.

A plugin (`-p tests.harness`) that starts them while it is imported: the settings need their addresses before Django is
set up.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from lab.embedded.instance import open_python
from lab.embedded.services import Postgres, Valkey, start, stop
from lab.embedded.supervisor import copy_examples

BASE_DIR = Path(__file__).resolve().parent.parent
_ROOT = Path(tempfile.mkdtemp(prefix="swy-test-", dir="/tmp"))
_ROOT.chmod(0o711)  # where PostgreSQL runs under another uid, it must pass through
_SOCKETS = _ROOT / "s"
# What jobs of other users read: the checkout itself may be closed to them.
_OPEN = Path(tempfile.mkdtemp(prefix="swy-open-", dir="/tmp"))
_OPEN.chmod(0o755)
copy_examples(_OPEN / "examples")
_SOCKETS.mkdir(mode=0o700)
(_ROOT / "state" / "static").mkdir(parents=True)


class Services:
    """The run's servers. Who kills one starts it again."""

    def __init__(self) -> None:
        self.postgres = Postgres(_ROOT / "pg", _SOCKETS, _ROOT / "pg.log", durable=False)
        self.valkey = Valkey(_ROOT / "valkey", _SOCKETS, _ROOT / "valkey.log")
        self.processes = {s.name: start(s) for s in (self.postgres, self.valkey)}

    def kill(self, name: str) -> None:
        process = self.processes[name]
        # PostgreSQL's backends are told by the death of their parent; nothing else is needed.
        process.kill()
        process.wait()

    def start(self, name: str) -> None:
        service = self.postgres if name == "postgres" else self.valkey
        self.processes[name] = start(service)

    def stop(self) -> None:
        for service in (self.valkey, self.postgres):
            stop(service, self.processes[service.name])
        shutil.rmtree(_ROOT, ignore_errors=True)
        shutil.rmtree(_OPEN, ignore_errors=True)


SERVICES = Services()
atexit.register(SERVICES.stop)

os.environ |= {
    "DJANGO_SETTINGS_MODULE": "config.settings",
    "DJANGO_ALLOW_ASYNC_UNSAFE": "true",  # Playwright's own loop runs in the test's thread
    "SWITCHYARD_SECRET_KEY": secrets.token_urlsafe(48),
    "SWITCHYARD_STATE_DIR": str(_ROOT / "state"),
    "SWITCHYARD_LOCAL_CLUSTER": "on",
    "SWITCHYARD_EXAMPLES_DIR": str(_OPEN / "examples"),
    "SWITCHYARD_JOB_PYTHON": str(open_python()),
    "SWITCHYARD_ALLOWED_HOSTS": "testserver,127.0.0.1,localhost",
    "DATABASE_URL": f"postgres://app@{quote(str(_SOCKETS), safe='')}/switchyard",
    "REDIS_URL": f"redis+socket://{_SOCKETS}/valkey.sock",
    "SWITCHYARD_LOG_LEVEL": "WARNING",
    "SWITCHYARD_DEBUG": "off",
}


@pytest.fixture(autouse=True)
def _plain_static_files(settings) -> None:
    """Pages are tested without a collected manifest."""
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def _empty_cache(request) -> None:
    if "django_db_setup" in request.fixturenames:
        from django.core.cache import cache

        cache.clear()


@pytest.fixture
def services() -> Services:
    return SERVICES


@dataclass
class Worker:
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill9(self) -> None:
        """The parent and its children, as when the machine's memory runs out."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill9()


def test_environment() -> dict[str, str]:
    """The environment of a process that works on the test database."""
    from django.db import connection

    name = connection.settings_dict["NAME"]
    return {**os.environ, "DATABASE_URL": f"postgres://app@{quote(str(_SOCKETS), safe='')}/{name}"}


test_environment.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def real_worker(transactional_db) -> Iterator[Callable[..., Worker]]:
    """Start real Celery workers (and beat) on the test database: `real_worker(beat=True)`."""
    started: list[Worker] = []

    def start_worker(queues: str = "default,cluster.local", *, beat: bool = False, processes: int = 2) -> Worker:
        command = [sys.executable, "-m", "celery", "-A", "workers.app", "worker", "-Q", queues, "-c", str(processes)]
        command += [
            "-n",
            f"w{len(started)}-{os.getpid()}@test",
            "--without-gossip",
            "--without-mingle",
            "-l",
            "WARNING",
        ]
        if beat:
            command += ["-B", "-s", str(_ROOT / f"beat-{secrets.token_hex(4)}")]
        with (_ROOT / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=BASE_DIR, env=test_environment(), stdout=log, stderr=log, start_new_session=True
            )
        started.append(Worker(process))
        return started[-1]

    yield start_worker
    for worker in started:
        worker.stop()
    import redis

    redis.Redis(unix_socket_path=str(_SOCKETS / "valkey.sock")).flushall()

"""One install on this machine: its folders, its secret, and the environment its processes share."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lab.embedded.services import Postgres, Valkey, socket_dir_for

BASE_DIR = Path(__file__).resolve().parent.parent.parent
MARKER = "SWITCHYARD_INSTANCE"
DATABASE = "switchyard"


@dataclass(frozen=True)
class Instance:
    """Everything of the install lies in `state_dir`, but the sockets, which need a short path."""

    state_dir: Path

    @property
    def name(self) -> str:
        return hashlib.sha256(str(self.state_dir.resolve()).encode()).hexdigest()[:12]

    @property
    def lock_path(self) -> Path:
        return self.state_dir / "supervisor.lock"

    @property
    def status_path(self) -> Path:
        return self.state_dir / "supervisor.json"

    def log_path(self, name: str) -> Path:
        return self.state_dir / "log" / f"{name}.log"

    def postgres(self) -> Postgres:
        return Postgres(self.state_dir / "postgres", socket_dir_for(self.name), self.log_path("postgres"))

    def valkey(self) -> Valkey:
        return Valkey(self.state_dir / "valkey", socket_dir_for(self.name), self.log_path("valkey"))

    def prepare(self) -> None:
        """Make the folders. Jobs of other uids pass through `state_dir` to their own folders and see nothing else."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.state_dir.chmod(0o711)
        (self.state_dir / "log").mkdir(mode=0o700, exist_ok=True)
        if not self.secret_path.exists():
            fd = os.open(self.secret_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(secrets.token_urlsafe(48))

    @property
    def secret_path(self) -> Path:
        return self.state_dir / "secret_key"

    def environment(self) -> dict[str, str]:
        """What every process of the install is started with, on top of who started it."""
        sockets = socket_dir_for(self.name)
        own = {
            MARKER: self.name,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "SWITCHYARD_STATE_DIR": str(self.state_dir),
            "SWITCHYARD_SECRET_KEY_FILE": str(self.secret_path),
            "DATABASE_URL": f"postgres://app@{quote(str(sockets), safe='')}/{DATABASE}",
            "REDIS_URL": f"redis+socket://{sockets}/valkey.sock",
            "SWITCHYARD_LOCAL_CLUSTER": "on",
            "SWITCHYARD_EXAMPLES_DIR": str(self.state_dir / "examples"),
            "SWITCHYARD_JOB_PYTHON": str(open_python()),
            "PYTHONUNBUFFERED": "1",
        }
        inherited = {name: value for name, value in os.environ.items() if name != "SWITCHYARD_SECRET_KEY"}
        return {**inherited, **own}


def this_instance() -> Instance:
    """Where `var` is a link, what it leads to: jobs of other users may pass through there, and not through the link."""
    return Instance(Path(os.environ.get("SWITCHYARD_STATE_DIR") or BASE_DIR / "var").resolve())


def open_python() -> Path:
    """This interpreter by its folder's real path, for the same reason; in it, the environment's own name for it."""
    executable = Path(sys.executable)
    return executable.parent.resolve() / executable.name

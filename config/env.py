"""Reads the environment once, typed. Every name may also come as NAME_FILE: then the file's text is the value.

`.env.example` lists every name with a sentence. A wrong value stops the process with the name and the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import environ
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Env:
    debug: bool
    secret_key: str
    allowed_hosts: list[str]
    csrf_trusted_origins: list[str]
    https: bool
    database: dict[str, object]
    redis_url: str
    state_dir: Path
    local_cluster: bool
    local_job_uid_base: int
    examples_dir: Path
    job_python: str
    work_roots: list[Path]
    log_level: str
    email_url: str


def read_env() -> Env:
    env = environ.FileAwareEnv()
    secret_key = env.str("SWITCHYARD_SECRET_KEY", default="")
    if len(secret_key) < 32:
        raise ImproperlyConfigured(
            "SWITCHYARD_SECRET_KEY (or SWITCHYARD_SECRET_KEY_FILE) must hold at least 32 characters; "
            "`make demo` and `make dev` make one."
        )
    database = dict(env.db_url("DATABASE_URL"))
    database["HOST"] = unquote(str(database.get("HOST") or ""))  # a socket's folder is written %2Flike%2Fthis
    state_dir = Path(env.str("SWITCHYARD_STATE_DIR", default=str(BASE_DIR / "var")))
    return Env(
        debug=env.bool("SWITCHYARD_DEBUG", default=False),
        secret_key=secret_key,
        allowed_hosts=env.list("SWITCHYARD_ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"]),
        csrf_trusted_origins=env.list("SWITCHYARD_CSRF_TRUSTED_ORIGINS", default=[]),
        https=env.bool("SWITCHYARD_HTTPS", default=False),
        database=database,
        redis_url=env.str("REDIS_URL"),
        state_dir=state_dir,
        local_cluster=env.bool("SWITCHYARD_LOCAL_CLUSTER", default=False),
        local_job_uid_base=env.int("SWITCHYARD_LOCAL_JOB_UID_BASE", default=59410),
        examples_dir=Path(env.str("SWITCHYARD_EXAMPLES_DIR", default=str(BASE_DIR / "examples"))),
        job_python=env.str("SWITCHYARD_JOB_PYTHON", default="python3"),
        work_roots=[Path(p) for p in env.list("SWITCHYARD_WORK_ROOTS", default=[])],
        log_level=env.str("SWITCHYARD_LOG_LEVEL", default="INFO"),
        email_url=env.str("EMAIL_URL", default="consolemail://"),
    )

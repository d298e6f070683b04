"""Checks that need the settings but no services: `python -m lab.checks`; `openapi` writes the API document anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
# Nothing listens there: neither check connects to anything.
_ENVIRONMENT = {
    "SWITCHYARD_SECRET_KEY": "only-for-checks-that-start-nothing-at-all",
    "DATABASE_URL": "postgres://app@%2Fnonexistent/db",
    "REDIS_URL": "redis+socket:///nonexistent",
    "SWITCHYARD_LOG_LEVEL": "ERROR",
}


def manage(*arguments: str) -> int:
    command = [sys.executable, "-W", "ignore", "manage.py", *arguments]
    return subprocess.run(command, cwd=BASE_DIR, env={**os.environ, **_ENVIRONMENT}, check=False).returncode


def main(arguments: list[str]) -> int:
    if arguments == ["openapi"]:
        return manage("spectacular", "--validate", "--fail-on-warn", "--file", "docs/openapi.yaml")
    return manage("makemigrations", "--check", "--dry-run", "-v", "0") or manage("check", "--fail-level", "ERROR")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m lab.embedded start|stop|status|run|manage`: this install on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from lab.embedded.instance import BASE_DIR, Instance, this_instance
from lab.embedded.services import ServiceError
from lab.embedded.supervisor import Supervisor, free_bind, sole_supervisor, supervisor_pid

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 120


def main(arguments: list[str]) -> int:
    instance = this_instance()
    verb = arguments[0] if arguments else ""
    try:
        instance.prepare()
        if verb == "start":
            return start(instance)
        if verb == "stop":
            return stop(instance)
        if verb == "status":
            return status(instance)
        if verb == "run":
            return run(instance)
        if verb == "manage":
            return manage(instance, arguments[1:])
    except ServiceError as error:
        print(f"switchyard: {error}", file=sys.stderr)
        return 1
    print(__doc__, file=sys.stderr)
    return 2


def run(instance: Instance) -> int:
    """In the foreground, until Ctrl-C."""
    with sole_supervisor(instance) as lock:
        if lock is None:
            print(f"Switchyard is running already: {_status(instance).get('url', '')}")
            return 0
        return Supervisor(instance, free_bind(os.environ.get("SWITCHYARD_BIND"))).run()


def start(instance: Instance) -> int:
    """In the background; returns once the pages answer."""
    if _status(instance).get("state") == "running":
        print(f"Switchyard is running already: {_status(instance).get('url', '')}")
        return 0
    log_path = instance.log_path("supervisor")
    with log_path.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "lab.embedded", "run"],
            cwd=BASE_DIR,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline, shown = time.monotonic() + START_TIMEOUT_S, ""
    while time.monotonic() < deadline:
        found = _status(instance)
        state = str(found.get("state", ""))
        if state == "running":
            print(f"  Switchyard is up: {found['url']}")
            return 0
        if state and state not in {shown, "stopping", "failed"}:
            print(f"  {state} ...", flush=True)
            shown = state
        if process.poll() is not None and not _is_running(instance):
            print(log_path.read_bytes()[begin:].decode(errors="replace").strip(), file=sys.stderr)
            print(f"switchyard: could not be started; the logs are in {log_path.parent}", file=sys.stderr)
            return 1
        time.sleep(0.1)
    print(f"switchyard: not up after {START_TIMEOUT_S} s; the logs are in {log_path.parent}", file=sys.stderr)
    return 1


def stop(instance: Instance) -> int:
    """End everything in order. What a killed supervisor left behind is found and ended too."""
    if not _is_running(instance):
        with sole_supervisor(instance) as lock:
            if lock is not None:
                Supervisor(instance, "127.0.0.1:0").end_orphans()
                instance.postgres().clear_stale()
                instance.valkey().clear_stale()
                instance.status_path.unlink(missing_ok=True)
        print("Switchyard is not running.")
        return 0
    deadline, told = time.monotonic() + STOP_TIMEOUT_S, None
    while time.monotonic() < deadline:
        pid = supervisor_pid(instance)
        if pid is None:
            print("Switchyard has stopped.")
            return 0
        if pid != told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            told = pid
        time.sleep(0.1)
    print(f"switchyard: the supervisor (process {told}) does not end", file=sys.stderr)
    return 1


def status(instance: Instance) -> int:
    if not _is_running(instance):
        print("Switchyard is not running.")
        return 3
    found = _status(instance)
    print(f"{found.get('state', 'starting')}  {found.get('url', '')}")
    for name, pid in found.get("processes", {}).items():
        print(f"  {name:<14} process {pid}")
    return 0


def manage(instance: Instance, arguments: list[str]) -> int:
    """manage.py with this install's environment."""
    if arguments[:1] == ["demo"]:
        arguments = [*arguments, "--url", str(_status(instance).get("url", ""))]
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=BASE_DIR, env=instance.environment(), check=False).returncode


def _is_running(instance: Instance) -> bool:
    return supervisor_pid(instance) is not None


def _status(instance: Instance) -> dict[str, Any]:
    """What the running supervisor says of itself; nothing when it has not said anything yet."""
    try:
        status = dict(json.loads(instance.status_path.read_text()))
    except (OSError, ValueError):
        return {}
    return status if status.get("pid") == supervisor_pid(instance) else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

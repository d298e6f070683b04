"""`python -m workers.clusters`: one Celery worker a connected cluster, as clusters come and go.

Each is a process of its own, so that a scheduler that hangs starves no other, and only this role needs what the
schedulers ask for (keys, Slurm's commands). The local cluster is not among them: its worker starts jobs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType

LOOK_EVERY_S = 3.0
THREADS = 4


class Workers:
    """Keeps the workers that should be there. A worker that died is started again at the next look."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._is_ending = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def run(self) -> None:
        while not self._is_ending:
            wanted = _queues()
            if wanted is not None:
                self._bring_to(wanted)
            time.sleep(LOOK_EVERY_S)
        self._bring_to(set())

    def _bring_to(self, wanted: set[str]) -> None:
        for queue, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[queue]
            elif queue not in wanted:
                process.terminate()
        for queue in wanted - self._running.keys():
            self._running[queue] = subprocess.Popen(_worker(queue))
        if not wanted:
            for process in self._running.values():
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_ending = True


def _worker(queue: str) -> list[str]:
    """Threads, not processes: what an adapter remembers of the last poll and its connections are shared."""
    return [
        *(sys.executable, "-m", "celery", "-A", "workers.app", "worker", "-Q", queue, "-P", "threads"),
        *("-c", str(THREADS), "-n", f"{queue}@switchyard", "--without-gossip", "--without-mingle", "-l", "WARNING"),
    ]


def _queues() -> set[str] | None:
    """The queues of the clusters that are switched on; None while the database cannot be asked."""
    from django.db import DatabaseError, close_old_connections

    from apps.inventory.models import Cluster

    close_old_connections()
    try:
        return {cluster.queue for cluster in Cluster.objects.filter(is_enabled=True).exclude(scheduler="local")}
    except DatabaseError:
        return None


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    Workers().run()


if __name__ == "__main__":
    main()

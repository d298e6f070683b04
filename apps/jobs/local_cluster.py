"""This machine as a cluster: the row that makes it one, and starting and stopping it with the product."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from typing import Any

from django.conf import settings

from apps.core.errors import Conflict
from apps.inventory.actions import ensure_cluster
from apps.inventory.models import Cluster
from apps.jobs.models import JobAttempt
from apps.jobs.reconcile import poll_nodes, reconcile_cluster
from apps.jobs.schedulers.local import LocalScheduler
from apps.jobs.schedulers.registry import scheduler_for
from apps.jobs.states import ACTIVE

NAME = "local"
# A job has its grace period to save what it has; then it is killed.
END_WAIT_S = 20.0
RECORD_WAIT_S = 15.0


def open_local_cluster() -> Cluster:
    """Make or renew the row, and let jobs start. Raises Conflict where the site has not switched it on."""
    if not settings.SWITCHYARD.local_cluster:
        raise Conflict("The local cluster is off: set SWITCHYARD_LOCAL_CLUSTER=on to run jobs on this machine.")
    cluster = ensure_cluster(NAME, title="This machine", scheduler="local", config=_config())
    _scheduler(cluster).resume()
    poll_nodes(cluster.pk)
    return cluster


def close_local_cluster(reason: str) -> int:
    """Start no more jobs, end those that run, and write their ends down; returns how many would not end."""
    cluster = Cluster.objects.filter(name=NAME, scheduler="local").first()
    if cluster is None:
        return 0
    scheduler = _scheduler(cluster)
    scheduler.pause(reason)
    left = scheduler.end_running(reason, END_WAIT_S)
    # A poll that is under way may have looked before they ended, and keeps ours from looking.
    deadline = time.monotonic() + RECORD_WAIT_S
    while True:
        reconcile_cluster(cluster.pk)
        running = JobAttempt.objects.filter(cluster=cluster, state__in=ACTIVE).count()
        if running <= left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def _scheduler(cluster: Cluster) -> LocalScheduler:
    scheduler = scheduler_for(cluster.scheduler, cluster.config)
    assert isinstance(scheduler, LocalScheduler)
    return scheduler


def _config() -> dict[str, Any]:
    state_dir = settings.SWITCHYARD.state_dir.resolve()
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "localhost"
    return {
        "spool_dir": str(state_dir / "spool"),
        "jobs_dir": str(state_dir / "jobs"),
        "node_name": host,
        "allow_same_user": os.geteuid() != 0,
        "python": sys.executable,
    }

"""The cast on a real Slurm: Mina is alice there, Olga is bob."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.slurm.lab import SlurmLab
from tests.slurmlab import slurm_config


@pytest.fixture
def slurm_cast(cast: Any, slurm_lab: SlurmLab) -> Iterator[Any]:
    """`cast` with the lab as its cluster. The lab's jobs of other tests are not there: each starts with none open."""
    from apps.accounts.actions import set_unix_identity
    from apps.inventory.models import Cluster
    from apps.jobs.reconcile import poll_nodes

    end_all_jobs(slurm_lab)
    cluster = Cluster.objects.create(name="lab", title="The lab", scheduler="slurm", config=slurm_config(slurm_lab))
    set_unix_identity(cast.mina, cluster, "alice", by=None)
    set_unix_identity(cast.olga, cluster, "bob", by=None)
    poll_nodes(cluster.pk)
    cast.cluster = cluster
    yield cast
    end_all_jobs(slurm_lab)


def end_all_jobs(lab: SlurmLab) -> None:
    lab.try_run(["scancel", "--user=alice"])
    lab.try_run(["scancel", "--user=bob"])


def sbatch(lab: SlurmLab, user: str, *options: str, script: str = "sleep 60") -> str:
    """A job that is born on a login node; returns its id."""
    path = Path(lab.jobs_dir) / f"{user}-script.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    inside = str(lab.layout.path("jobs"))
    command = ["sbatch", "--parsable", f"--chdir={inside}", *options, f"{inside}/{path.name}"]
    return lab.run(command, user=user).strip()

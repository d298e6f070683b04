"""A real Slurm for the tests that ask for it, once a run: the fixture `slurm_lab`. Loaded as a pytest plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.slurm.lab import LabError, SlurmLab, free_port
from lab.slurm.settings import Layout


@pytest.fixture(scope="session")
def slurm_lab() -> Iterator[SlurmLab]:
    if os.geteuid() != 0:
        pytest.skip("the Slurm lab needs root")
    port = free_port()
    lab = SlurmLab(Layout(root=Path(f"/var/lib/switchyard-lab/test-{port}"), port=port))
    lab.wipe()
    try:
        lab.up()
    except LabError as error:
        lab.wipe()
        pytest.fail(f"the Slurm lab does not come up: {error}")
    yield lab
    lab.wipe()


def slurm_config(lab: SlurmLab) -> dict[str, Any]:
    """What a cluster's row holds to reach the lab."""
    return {
        "url": lab.url,
        "jwt_key_file": str(lab.key_path),
        "reader": "root",
        "admin": "root",
        "cluster_name": lab.layout.cluster,
        "commands": lab.chroot is None,
        "slurm_conf": str(lab.layout.path("etc/slurm.conf")),
        "default_folder": str(lab.layout.path("jobs")),
    }

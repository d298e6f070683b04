"""The people of the tests: Olga leads project "gpt", Mina is a member, Vic may look, Sam is a stranger, Rex runs it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

PASSWORD = "correct horse battery"


@dataclass
class Cast:
    olga: object
    mina: object
    vic: object
    sam: object
    rex: object
    project: object
    cluster: object
    PASSWORD: str = PASSWORD

    def people(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("olga", "mina", "vic", "sam", "rex")}


def make_cast(jobs_root: Path) -> Cast:
    from apps.accounts.models import Allocation, HourUnit, Membership, Project, Role, User
    from apps.inventory.models import Cluster, Partition

    people = {
        name: User.objects.create_user(
            name, password=PASSWORD, first_name=name.title(), is_operator=name == "rex", email=f"{name}@example.org"
        )
        for name in ("olga", "mina", "vic", "sam", "rex")
    }
    project = Project.objects.create(name="gpt", title="A language model")
    for name, role in (("olga", Role.LEAD), ("mina", Role.MEMBER), ("vic", Role.VIEWER)):
        Membership.objects.create(project=project, user=people[name], role=role)
    Allocation.objects.create(project=project, unit=HourUnit.GPU, granted=Decimal(1000))
    Allocation.objects.create(project=project, unit=HourUnit.CPU, granted=Decimal(10000))
    cluster = Cluster.objects.create(
        name="local", title="This machine", scheduler="local", config=local_config(jobs_root)
    )
    Partition.objects.create(
        cluster=cluster,
        name="local",
        is_default=True,
        max_nodes_per_job=1,
        max_cpus_per_node=2,
        max_memory_bytes_per_node=8 * 2**30,
        max_time_s=7 * 86400,
    )
    return Cast(**people, project=project, cluster=cluster)


def local_config(root: Path) -> dict[str, object]:
    import os
    import sys

    return {
        "spool_dir": str(root / "spool"),
        "jobs_dir": str(root / "jobs"),
        "node_name": "node-1",
        "cpus": 2,
        "memory_bytes": 8 * 2**30,
        "allow_same_user": os.geteuid() != 0,
        "python": sys.executable,
        "grace_s": 1.0,
        "max_time_s": 7 * 86400,
    }


@pytest.fixture
def jobs_root(tmp_path_factory):
    """A folder other uids can pass through, for the local cluster's spool and jobs."""
    import shutil
    import tempfile

    root = Path(tempfile.mkdtemp(prefix="swy-jobs-", dir="/tmp"))
    root.chmod(0o711)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def cast(db, jobs_root) -> Cast:
    return make_cast(jobs_root)

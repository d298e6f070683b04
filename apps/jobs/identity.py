"""Which of our rows a scheduler's job is, and what is known of one that was born elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apps.accounts.models import UnixIdentity
from apps.inventory.models import Cluster
from apps.jobs.models import JobAttempt
from apps.jobs.schedulers.base import ObservedJob
from apps.jobs.states import JobState


def is_same(attempt: JobAttempt, observed: ObservedJob) -> bool:
    """Whether the id still means what it meant: a scheduler that lost its memory counts from 1 again."""
    job = attempt.job
    if attempt.token.startswith("sw-") and observed.token is not None:
        return base_token(attempt.token) == observed.token
    # An old record may have lost the token; what it still tells must be the same.
    if (observed.unix_user or job.unix_user) != job.unix_user or observed.name[:200] != job.name[: len(observed.name)]:
        return False
    return (
        attempt.submitted_at is None
        or observed.submitted_at is None
        or attempt.token.startswith("sw-")
        or attempt.submitted_at == observed.submitted_at
        or observed.restart_count > attempt.restart_count
        or not attempt.is_final
    )


def base_token(token: str) -> str:
    """A run that the scheduler started anew has the token of the first with its number added."""
    return token.partition("~")[0]


def adopted_token(cluster_pk: int, external_id: str, born: datetime | None) -> str:
    return f"adopted-{cluster_pk}-{external_id}-{born.isoformat() if born else 'unknown'}"[:95]


def adopted_values(cluster: Cluster, observed: ObservedJob) -> dict[str, Any]:
    """The columns of a job that was born elsewhere. Its amounts are of the whole job; ours are a node's."""
    nodes = max(1, len(observed.nodes) or observed.node_count or 1)
    identities = UnixIdentity.objects.filter(cluster=cluster, unix_user=observed.unix_user or "").select_related("user")
    owners = [identity.user for identity in identities[:2]]
    return {
        "cluster": cluster,
        "name": observed.name[:200] or observed.external_id,
        "submitted_by": owners[0] if len(owners) == 1 else None,
        "unix_user": observed.unix_user or "",
        "account_name": observed.account or "",
        "partition": observed.partition or "",
        "qos": (observed.qos or "")[:100],
        "nodes": nodes,
        "cpus_per_node": max(1, -(-(observed.cpus or 1) // nodes)),
        "accelerators_per_node": -(-(observed.accelerator_count or 0) // nodes),
        "memory_bytes_per_node": None if observed.memory_bytes is None else observed.memory_bytes // nodes,
        "time_limit_s": observed.time_limit_s,
        "working_dir": (observed.working_dir or "")[:1000],
        "state": JobState.PENDING,
        "is_held": observed.held,
        "attempt_count": 1,
    }

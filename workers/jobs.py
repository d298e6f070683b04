"""Tasks of jobs. Each body is one call; all are safe to run twice, and a lost one is made up for by the beat table."""

from __future__ import annotations

from celery import shared_task

from apps.jobs.carry_out import carry_out_wish
from apps.jobs.dispatch import dispatch_jobs, recover_attempt
from apps.jobs.node_control import carry_out_nodes
from apps.jobs.reconcile import poll_nodes, reconcile_cluster, tidy, wake_forgotten, wake_polls
from workers.schedule import POLL_NODES_EVERY_S, RECONCILE_EVERY_S, RECOVER_EVERY_S


@shared_task(name="jobs.dispatch")
def dispatch(*job_pks: int) -> None:
    dispatch_jobs(job_pks)


@shared_task(name="jobs.recover_attempt")
def recover_one(attempt_pk: int) -> None:
    recover_attempt(attempt_pk)


@shared_task(name="jobs.carry_out")
def carry_out(job_pk: int) -> None:
    carry_out_wish(job_pk)


@shared_task(name="jobs.carry_out_nodes")
def carry_out_cluster_nodes(cluster_pk: int) -> None:
    carry_out_nodes(cluster_pk)


@shared_task(name="jobs.reconcile")
def reconcile(cluster_pk: int) -> None:
    reconcile_cluster(cluster_pk)


@shared_task(name="jobs.reconcile_fully")
def reconcile_fully(cluster_pk: int) -> None:
    reconcile_cluster(cluster_pk, full=True)


@shared_task(name="jobs.reconcile_all")
def reconcile_all() -> None:
    wake_polls("jobs.reconcile", expires_s=RECONCILE_EVERY_S)


@shared_task(name="jobs.recover")
def recover() -> None:
    wake_forgotten(expires_s=RECOVER_EVERY_S)


@shared_task(name="jobs.poll_nodes")
def poll_cluster_nodes(cluster_pk: int) -> None:
    poll_nodes(cluster_pk)


@shared_task(name="jobs.poll_nodes_all")
def poll_nodes_all() -> None:
    wake_polls("jobs.poll_nodes", expires_s=POLL_NODES_EVERY_S)


@shared_task(name="jobs.tidy")
def tidy_up() -> None:
    tidy()

"""Scheduler control planes, their queues, and who holds which card when."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q, UniqueConstraint

from apps.core.models import Timestamped


class Cluster(Timestamped):
    """One control plane we talk to. The `poll_*` columns say how the last talk went: pages show them, never ask."""

    name = models.SlugField(max_length=60, unique=True)
    title = models.CharField(max_length=120, blank=True)
    site = models.ForeignKey("inventory.Site", null=True, on_delete=models.PROTECT, related_name="clusters")
    scheduler = models.CharField(max_length=20, help_text="the adapter: local, slurm ...")
    config = models.JSONField(default=dict, blank=True, help_text="what the adapter needs to know; never a secret")
    is_enabled = models.BooleanField(default=True)
    is_simulated = models.BooleanField(default=False)
    notes = ArrayField(models.CharField(max_length=500), default=list, blank=True)

    poll_cursor = models.CharField(max_length=200, blank=True)
    poll_succeeded_at = models.DateTimeField(null=True)
    poll_failed_at = models.DateTimeField(null=True)
    poll_error = models.CharField(max_length=1000, blank=True)
    poll_duration_ms = models.PositiveIntegerField(null=True)
    nodes_polled_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def queue(self) -> str:
        """The Celery queue of its own, so that a hung scheduler starves nobody else."""
        return f"cluster.{self.name}"


class Partition(Timestamped):
    """A queue of a cluster. A limit that is None is no limit."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="partitions")
    name = models.CharField(max_length=100)
    is_default = models.BooleanField(default=False)
    is_up = models.BooleanField(default=True)
    max_time_s = models.PositiveIntegerField(null=True)
    max_nodes_per_job = models.PositiveIntegerField(null=True)
    max_cpus_per_node = models.PositiveIntegerField(null=True)
    max_memory_bytes_per_node = models.BigIntegerField(null=True)
    max_accelerators_per_node = models.PositiveSmallIntegerField(null=True)
    retired_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-is_default", "name"]
        constraints = [UniqueConstraint(fields=["cluster", "name"], name="partition_name_in_cluster")]

    def __str__(self) -> str:
        return self.name


class AcceleratorUse(models.Model):
    """Attempt `attempt_key` held this card in [started_at, ended_at). Jobs write it downward; telemetry reads it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="+")
    attempt_key = models.CharField(max_length=64)
    accelerator = models.ForeignKey("inventory.Accelerator", on_delete=models.PROTECT, related_name="uses")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["accelerator", "-started_at"])]
        constraints = [
            UniqueConstraint(fields=["attempt_key", "accelerator"], name="one_use_per_attempt_and_card"),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True) | Q(ended_at__gte=F("started_at")), name="use_ends_after_start"
            ),
        ]


class NodeStateChange(models.Model):
    """Append-only: from `at` on the node was in `state`. `source` is the cluster's scheduler or a person's name."""

    node = models.ForeignKey("inventory.Node", on_delete=models.CASCADE, related_name="state_changes")
    at = models.DateTimeField()
    state = models.CharField(max_length=20)
    flags = ArrayField(models.CharField(max_length=30), default=list, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    source = models.CharField(max_length=100)

    class Meta:
        indexes = [models.Index(fields=["node", "-at", "-id"])]

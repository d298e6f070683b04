"""What stands in the racks: node types, nodes, accelerators."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, IntegerRangeField, RangeBoundary, RangeOperators
from django.db import models
from django.db.models import F, Func, Q, UniqueConstraint

from apps.core.models import Timestamped


class AcceleratorModel(Timestamped):
    """One GPU product, with published figures; `source` says where they were read. Peaks are dense, in TFLOP/s."""

    name = models.CharField(max_length=80, unique=True)
    vendor = models.CharField(max_length=40)
    architecture = models.CharField(max_length=40, blank=True)
    launch_year = models.PositiveSmallIntegerField(null=True)
    form = models.CharField(max_length=60, blank=True)
    memory_bytes = models.BigIntegerField(null=True)
    memory_bytes_per_s = models.FloatField(null=True)
    bf16_tflops = models.FloatField(null=True)
    fp8_tflops = models.FloatField(null=True)
    nvlink_bytes_per_s = models.FloatField(null=True, help_text="both directions together")
    tdp_w = models.PositiveIntegerField(null=True)
    source = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["vendor", "name"]

    def __str__(self) -> str:
        return self.name


class NodeType(Timestamped):
    """A kind of server, e.g. DGX H100."""

    name = models.CharField(max_length=100, unique=True)
    vendor = models.CharField(max_length=60, blank=True)
    accelerator_model = models.ForeignKey(
        AcceleratorModel, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    accelerators_per_node = models.PositiveSmallIntegerField(default=0)
    cpu_model = models.CharField(max_length=100, blank=True)
    cpus = models.PositiveIntegerField(null=True, blank=True)
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    nics_per_node = models.PositiveSmallIntegerField(null=True, blank=True)
    nic_bits_per_s = models.BigIntegerField(null=True, blank=True)
    fabric = models.CharField(max_length=100, blank=True)
    power_max_w = models.PositiveIntegerField(null=True, blank=True)
    height_u = models.PositiveSmallIntegerField(default=8)
    source = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class NodeState(models.TextChoices):
    IDLE = "idle", "idle"
    MIXED = "mixed", "mixed"
    ALLOCATED = "allocated", "allocated"
    DOWN = "down", "down"
    DRAINED = "drained", "drained"
    DRAINING = "draining", "draining"
    PLANNED = "planned", "planned"
    UNKNOWN = "unknown", "unknown"


class WantedOfNode(models.TextChoices):
    """What an operator asked for and the scheduler has yet to confirm."""

    NOTHING = "", "nothing"
    DRAIN = "drain", "drain"
    RESUME = "resume", "resume"


class _IntegerRange(Func):
    function = "INT4RANGE"
    output_field = IntegerRangeField()


class Node(Timestamped):
    """One server. The manifest owns place and hardware, the scheduler owns state; neither deletes, both retire.

    `wanted` is empty again once the scheduler has confirmed or refused; who asked last, and why, stays beside it.
    """

    cluster = models.ForeignKey(
        "inventory.Cluster", null=True, blank=True, on_delete=models.PROTECT, related_name="nodes"
    )
    name = models.CharField(max_length=255)
    node_type = models.ForeignKey(NodeType, null=True, blank=True, on_delete=models.PROTECT, related_name="nodes")
    rack = models.ForeignKey("inventory.Rack", null=True, blank=True, on_delete=models.PROTECT, related_name="nodes")
    position_u = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="lowest unit it fills, counted from 1 below"
    )
    height_u = models.PositiveSmallIntegerField(default=1)
    face = models.CharField(max_length=5, choices=[("front", "front"), ("rear", "rear")], default="front")
    serial = models.CharField(max_length=100, blank=True)
    comment = models.CharField(max_length=500, blank=True)
    cpus = models.PositiveIntegerField(null=True, blank=True)
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    accelerator_count = models.PositiveSmallIntegerField(null=True, blank=True)
    partitions = models.ManyToManyField("inventory.Partition", related_name="nodes", blank=True)

    state = models.CharField(max_length=20, choices=NodeState, default=NodeState.UNKNOWN)
    flags = ArrayField(models.CharField(max_length=30), default=list, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    state_since = models.DateTimeField(null=True)
    seen_at = models.DateTimeField(null=True)
    cpus_used = models.PositiveIntegerField(null=True)
    memory_bytes_used = models.BigIntegerField(null=True)
    retired_at = models.DateTimeField(null=True)

    wanted = models.CharField(max_length=10, choices=WantedOfNode, default=WantedOfNode.NOTHING, blank=True)
    wanted_reason = models.CharField(max_length=200, blank=True)
    wanted_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    wanted_at = models.DateTimeField(null=True)
    wanted_error = models.CharField(
        max_length=500, blank=True, help_text="why it is not done yet; with nothing wanted, why it was refused"
    )

    class Meta:
        ordering = ["name"]
        indexes = [
            models.Index(fields=["cluster", "state"]),
            models.Index(fields=["rack", "position_u"]),
            models.Index(fields=["cluster"], name="node_wanted", condition=~Q(wanted="")),
        ]
        constraints = [
            UniqueConstraint(fields=["cluster", "name"], name="node_name_in_cluster", nulls_distinct=False),
            models.CheckConstraint(condition=Q(height_u__gte=1), name="node_height_positive"),
            ExclusionConstraint(
                name="node_place_is_free",
                expressions=[
                    ("rack", RangeOperators.EQUAL),
                    (
                        _IntegerRange(F("position_u"), F("position_u") + F("height_u"), RangeBoundary()),
                        RangeOperators.OVERLAPS,
                    ),
                ],
                condition=Q(rack__isnull=False, position_u__isnull=False, retired_at__isnull=True),
                violation_error_message="Another node stands in these units of the rack.",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Accelerator(Timestamped):
    """One card, by UUID: its index and even its node may change when cards are swapped."""

    uuid = models.CharField(max_length=100, unique=True)
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="accelerators")
    index = models.PositiveSmallIntegerField(null=True)
    model = models.CharField(max_length=100, blank=True)
    memory_bytes = models.BigIntegerField(null=True)
    serial = models.CharField(max_length=100, blank=True)
    retired_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["node", "index"]
        constraints = [
            UniqueConstraint(
                fields=["node", "index"],
                name="accelerator_index_in_node",
                condition=Q(retired_at__isnull=True, node__isnull=False, index__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return self.uuid

"""What bodies and answers of the inventory look like. Sizes are in bytes, times in ISO 8601 UTC."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.base import IdField, StrictSerializer
from apps.inventory.models import NodeState

_SMALL = 32_767
_INT = 2_147_483_647
_BIG = 2**63 - 1


def _text(max_length: int, **more: object) -> serializers.CharField:
    return serializers.CharField(max_length=max_length, **more)  # type: ignore[arg-type]


def _number(high: int, low: int = 0) -> serializers.IntegerField:
    return serializers.IntegerField(min_value=low, max_value=high, required=False, allow_null=True)


# -- bodies


class RegionIn(StrictSerializer):
    name = _text(100)


class SiteIn(StrictSerializer):
    region = IdField(help_text="The region's id.")
    name = _text(100)
    time_zone = _text(64, required=False)


class HallIn(StrictSerializer):
    site = IdField(help_text="The site's id.")
    name = _text(100)


class RackIn(StrictSerializer):
    hall = IdField(help_text="The hall's id.")
    name = _text(100)
    row = _text(20, required=False, allow_blank=True)
    place = _number(_SMALL)
    height_u = serializers.IntegerField(min_value=1, max_value=100, required=False)
    power_limit_w = _number(_INT, 1)


class NodeTypeIn(StrictSerializer):
    name = _text(100)
    vendor = _text(60, required=False, allow_blank=True)
    accelerator_model = _text(80, required=False, allow_null=True, help_text="A name of /accelerator-models/.")
    accelerators_per_node = serializers.IntegerField(min_value=0, max_value=_SMALL, required=False)
    cpu_model = _text(100, required=False, allow_blank=True)
    cpus = _number(_INT, 1)
    memory_bytes = _number(_BIG, 1)
    nics_per_node = _number(_SMALL)
    nic_bits_per_s = _number(_BIG, 1)
    fabric = _text(100, required=False, allow_blank=True)
    power_max_w = _number(_INT, 1)
    height_u = serializers.IntegerField(min_value=1, max_value=100, required=False)
    source = _text(200, required=False, allow_blank=True)


class NodeIn(StrictSerializer):
    name = _text(255)
    cluster = _text(60, required=False, allow_null=True, help_text="The cluster's name.")
    node_type = _text(100, required=False, allow_null=True, help_text="A name of /node-types/.")
    rack = IdField(required=False, allow_null=True, help_text="The rack's id.")
    position_u = _number(100, 1)
    height_u = serializers.IntegerField(min_value=1, max_value=100, required=False)
    face = serializers.ChoiceField(choices=["front", "rear"], required=False)
    serial = _text(100, required=False, allow_blank=True)
    comment = _text(500, required=False, allow_blank=True)
    cpus = _number(_INT, 1)
    memory_bytes = _number(_BIG, 1)
    accelerator_count = _number(_SMALL)


class ClusterIn(StrictSerializer):
    title = _text(120, required=False, allow_blank=True)
    is_enabled = serializers.BooleanField(required=False)
    site = IdField(required=False, allow_null=True, help_text="The site's id.")


class DrainIn(StrictSerializer):
    reason = _text(200, help_text="Why, in one line; it stands beside the node.")


class ResumeIn(StrictSerializer):
    reason = _text(200, required=False, default="", allow_blank=True, help_text="Why, in one line.")


class ManyNodesIn(StrictSerializer):
    ids = serializers.ListField(child=IdField(), min_length=1, max_length=1000, help_text="The nodes' ids.")


class DrainManyIn(ManyNodesIn, DrainIn):
    pass


class ResumeManyIn(ManyNodesIn, ResumeIn):
    pass


class ManifestIn(StrictSerializer):
    manifest = serializers.CharField(trim_whitespace=False, help_text="The YAML text, up to 2 MiB.")


# -- answers


class RegionOut(serializers.Serializer):
    id = serializers.IntegerField()
    name = serializers.CharField()


class SiteOut(RegionOut):
    region = serializers.IntegerField()
    time_zone = serializers.CharField()


class HallOut(RegionOut):
    site = serializers.IntegerField()


class RackOut(RegionOut):
    hall = serializers.IntegerField()
    row = serializers.CharField()
    place = serializers.IntegerField(allow_null=True)
    height_u = serializers.IntegerField()
    power_limit_w = serializers.IntegerField(allow_null=True)


class AcceleratorModelOut(RegionOut):
    vendor = serializers.CharField()
    architecture = serializers.CharField()
    launch_year = serializers.IntegerField(allow_null=True)
    form = serializers.CharField()
    memory_bytes = serializers.IntegerField(allow_null=True)
    memory_bytes_per_s = serializers.FloatField(allow_null=True)
    bf16_tflops = serializers.FloatField(allow_null=True, help_text="Dense.")
    fp8_tflops = serializers.FloatField(allow_null=True, help_text="Dense.")
    nvlink_bytes_per_s = serializers.FloatField(allow_null=True, help_text="Both directions together.")
    tdp_w = serializers.IntegerField(allow_null=True)
    source = serializers.CharField()


class NodeTypeOut(RegionOut):
    vendor = serializers.CharField()
    accelerator_model = serializers.CharField(allow_null=True)
    accelerators_per_node = serializers.IntegerField()
    cpu_model = serializers.CharField()
    cpus = serializers.IntegerField(allow_null=True)
    memory_bytes = serializers.IntegerField(allow_null=True)
    nics_per_node = serializers.IntegerField(allow_null=True)
    nic_bits_per_s = serializers.IntegerField(allow_null=True)
    fabric = serializers.CharField()
    power_max_w = serializers.IntegerField(allow_null=True)
    height_u = serializers.IntegerField()
    source = serializers.CharField()


class NodeOut(RegionOut):
    cluster = serializers.CharField(allow_null=True)
    node_type = serializers.CharField(allow_null=True)
    rack = serializers.IntegerField(allow_null=True)
    position_u = serializers.IntegerField(allow_null=True)
    height_u = serializers.IntegerField()
    face = serializers.CharField()
    serial = serializers.CharField()
    comment = serializers.CharField()
    cpus = serializers.IntegerField(allow_null=True)
    cpus_used = serializers.IntegerField(allow_null=True)
    memory_bytes = serializers.IntegerField(allow_null=True)
    memory_bytes_used = serializers.IntegerField(allow_null=True)
    accelerator_count = serializers.IntegerField(allow_null=True)
    state = serializers.CharField(help_text=f"One of {', '.join(NodeState.values)}.")
    flags = serializers.ListField(child=serializers.CharField())
    reason = serializers.CharField()
    state_since = serializers.DateTimeField(allow_null=True)
    seen_at = serializers.DateTimeField(allow_null=True)
    wanted = serializers.CharField(help_text="What was asked for and is not confirmed yet: drain or resume.")
    wanted_reason = serializers.CharField(help_text="Of what was asked for last.")
    wanted_by = serializers.CharField(allow_null=True, help_text="Who asked last.")
    wanted_at = serializers.DateTimeField(allow_null=True)


class NodeFactsOut(NodeOut):
    wanted_error = serializers.CharField(
        required=False, help_text="For operators: why it is not done yet or, with nothing wanted, why it was refused."
    )


class SkippedNodeOut(serializers.Serializer):
    id = serializers.IntegerField()
    why = serializers.CharField()


class AskedNodesOut(serializers.Serializer):
    asked = serializers.ListField(
        child=serializers.IntegerField(), help_text="Nodes that will be as asked, or are already."
    )
    skipped = SkippedNodeOut(many=True)


class StateChangeOut(serializers.Serializer):
    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    state = serializers.CharField()
    flags = serializers.ListField(child=serializers.CharField())
    reason = serializers.CharField()
    source = serializers.CharField(help_text="The cluster, the manifest, or a person's name.")


class AcceleratorOut(serializers.Serializer):
    id = serializers.IntegerField()
    uuid = serializers.CharField()
    node = serializers.IntegerField(allow_null=True)
    node_name = serializers.CharField(allow_null=True)
    index = serializers.IntegerField(allow_null=True)
    model = serializers.CharField()
    memory_bytes = serializers.IntegerField(allow_null=True)
    serial = serializers.CharField()


class PartitionOut(RegionOut):
    cluster = serializers.CharField()
    is_default = serializers.BooleanField()
    is_up = serializers.BooleanField()
    max_time_s = serializers.IntegerField(allow_null=True)
    max_nodes_per_job = serializers.IntegerField(allow_null=True)
    max_cpus_per_node = serializers.IntegerField(allow_null=True)
    max_memory_bytes_per_node = serializers.IntegerField(allow_null=True)
    max_accelerators_per_node = serializers.IntegerField(allow_null=True)


class ClusterOut(serializers.Serializer):
    name = serializers.CharField()
    title = serializers.CharField()
    site = serializers.IntegerField(allow_null=True)
    scheduler = serializers.CharField()
    is_enabled = serializers.BooleanField()
    is_simulated = serializers.BooleanField()
    notes = serializers.ListField(child=serializers.CharField())
    poll_succeeded_at = serializers.DateTimeField(allow_null=True)
    poll_failed_at = serializers.DateTimeField(allow_null=True)
    nodes_polled_at = serializers.DateTimeField(allow_null=True)


class ChangeOut(serializers.Serializer):
    action = serializers.ChoiceField(choices=["add", "change", "retire"])
    kind = serializers.CharField()
    path = serializers.ListField(child=serializers.CharField())
    before = serializers.DictField(help_text="Only what differs.")
    after = serializers.DictField()


class PlanOut(serializers.Serializer):
    summary = serializers.CharField()
    changes = ChangeOut(many=True)

"""What bodies about jobs look like, in and out. Inbound ones are enforced; outbound ones are the schema alone."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from rest_framework import serializers

from apps.api.base import IdField, StrictSerializer
from apps.jobs.actions import Check
from apps.jobs.models import Job, JobKind
from apps.jobs.queries import STREAMS
from apps.jobs.spec import JobSpec
from apps.jobs.states import JobState

# Texts are taken as they are: a script's spaces are its own. What is wrong with them, the domain says.
Text = partial(serializers.CharField, trim_whitespace=False, allow_blank=True)
Maybe = partial(Text, allow_null=True, required=False)
Whole = partial(serializers.IntegerField, required=False)
Moment = partial(serializers.DateTimeField, allow_null=True)
Hours = partial(serializers.DecimalField, max_digits=18, decimal_places=6, allow_null=True)

# Name in the answer -> path in the rows.
JOB_COLUMNS = {
    "id": "public_id",
    "name": "name",
    "kind": "kind",
    "state": "state",
    "reason": "reason",
    "is_held": "is_held",
    "wanted": "wanted",
    "project": "project__name",
    "cluster": "cluster__name",
    "submitted_by": "submitted_by__username",
    "unix_user": "unix_user",
    "account_name": "account_name",
    "partition": "partition",
    "nodes": "nodes",
    "accelerators_per_node": "accelerators_per_node",
    "cpus_per_node": "cpus_per_node",
    "memory_bytes_per_node": "memory_bytes_per_node",
    "time_limit_s": "time_limit_s",
    "qos": "qos",
    "tags": "tags",
    "external_id": "external_id",
    "attempt_count": "attempt_count",
    "created_at": "created_at",
    "started_at": "started_at",
    "ended_at": "ended_at",
    "exit_code": "exit_code",
    "exit_signal": "exit_signal",
    "progress": "progress",
    "progress_text": "progress_text",
    "gpu_hours": "gpu_hours",
    "cpu_hours": "cpu_hours",
}
_DETAIL_COLUMNS = {
    **JOB_COLUMNS,
    "script": "script",
    "environment": "environment",
    "working_dir": "working_dir",
    "reservation": "reservation",
    "constraints": "constraints",
    "expected_start_at": "expected_start_at",
    "max_retries": "max_retries",
    "parent_checkpoint": "parent_checkpoint_id",
    "copied_from": "copied_from__public_id",
    "updated_at": "updated_at",
}


def job_row(job: Job) -> dict[str, Any]:
    """One job as a list shows it."""
    return _facts(job, JOB_COLUMNS)


def job_facts(job: Job) -> dict[str, Any]:
    """One job with everything it was told to do."""
    return _facts(job, _DETAIL_COLUMNS)


def _facts(job: Job, columns: dict[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, path in columns.items():
        value: Any = job
        for part in path.split("__"):
            value = getattr(value, part) if value is not None else None
        facts[name] = value
    return facts


def spec_from(body: dict[str, Any]) -> JobSpec:
    return JobSpec(**_spec_values(body))


def spec_changes(body: dict[str, Any]) -> dict[str, Any]:
    """What of a spec the body says, for a copy that differs in it."""
    return _spec_values(body)


def _spec_values(body: dict[str, Any]) -> dict[str, Any]:
    values = {f.name: body[f.name] for f in fields(JobSpec) if f.name in body}
    if "tags" in values:
        values["tags"] = tuple(values["tags"])
    return values


def check_facts(check: Check) -> dict[str, Any]:
    """What a submit would do."""
    return {
        "dry_run": True,
        "script": check.script,
        "time_limit_s": check.spec.time_limit_s,
        "gpu_hours": check.gpu_hours,
        "cpu_hours": check.cpu_hours,
        "gpu_hours_left": check.gpu_hours_left,
        "cpu_hours_left": check.cpu_hours_left,
        "notes": list(check.notes),
    }


# -- in ---------------------------------------------------------------------------------------------------------------


class JobSpecIn(StrictSerializer):
    """What a job asks for. Memory in bytes, time in seconds, both by node where the name says so."""

    name = Text(help_text="One line, up to 200 characters.")
    kind = serializers.ChoiceField(choices=JobKind.choices)
    script = Text(help_text="What runs, up to 1 MiB; without a #! line it is a bash script.")
    environment = serializers.DictField(child=Text(), required=False, help_text="Up to 200 variables.")
    working_dir = Maybe(help_text="None: a folder of the job's own.")
    partition = Maybe(help_text="None: the cluster's default.")
    nodes = Whole()
    accelerators_per_node = Whole()
    cpus_per_node = Whole()
    memory_bytes_per_node = Whole(allow_null=True)
    time_limit_s = Whole(allow_null=True, help_text="None: the partition's own.")
    qos = Maybe(help_text="The scheduler's name for a quality of service; only where it has such.")
    reservation = Maybe(help_text="The name of a reservation to run in.")
    constraints = Maybe(help_text="Node features it needs, as the scheduler writes them: h100&ib.")
    parent_checkpoint = IdField(required=False, allow_null=True, help_text="The id of a checkpoint to start from.")
    max_retries = Whole()
    tags = serializers.ListField(child=Text(), required=False)


class JobIn(JobSpecIn):
    project = serializers.CharField(max_length=60, help_text="The project's name.")
    cluster = serializers.CharField(max_length=60, help_text="The cluster's name.")
    hold = serializers.BooleanField(required=False, default=False, help_text="Wait until somebody releases it.")


class JobsIn(StrictSerializer):
    """Up to 1,000 jobs, all or none."""

    project = serializers.CharField(max_length=60)
    cluster = serializers.CharField(max_length=60)
    hold = serializers.BooleanField(required=False, default=False)
    jobs = JobSpecIn(many=True, allow_empty=False, max_length=1000)


class RerunIn(JobSpecIn):
    """What is to be different in the copy; nothing: an exact copy."""

    name = Text(required=False)
    kind = serializers.ChoiceField(choices=JobKind.choices, required=False)
    script = Text(required=False)
    project = serializers.CharField(max_length=60, required=False)
    cluster = serializers.CharField(max_length=60, required=False)
    hold = serializers.BooleanField(required=False, default=False)


class NothingIn(StrictSerializer):
    """No body, or an empty one."""


class CancelIn(StrictSerializer):
    reason = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)


class CancelManyIn(CancelIn):
    ids = serializers.ListField(child=serializers.CharField(max_length=40), min_length=1, max_length=1000)


# -- out --------------------------------------------------------------------------------------------------------------


class JobOut(serializers.Serializer):
    id = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(choices=JobKind.choices)
    state = serializers.ChoiceField(choices=[state.value for state in JobState])
    reason = serializers.CharField()
    is_held = serializers.BooleanField()
    wanted = serializers.CharField(help_text="What was asked for and is not carried out yet: cancel, hold or release.")
    project = serializers.CharField(allow_null=True)
    cluster = serializers.CharField()
    submitted_by = serializers.CharField(allow_null=True)
    unix_user = serializers.CharField()
    account_name = serializers.CharField()
    partition = serializers.CharField()
    nodes = serializers.IntegerField()
    accelerators_per_node = serializers.IntegerField()
    cpus_per_node = serializers.IntegerField()
    memory_bytes_per_node = serializers.IntegerField(allow_null=True)
    time_limit_s = serializers.IntegerField(allow_null=True)
    qos = serializers.CharField()
    tags = serializers.ListField(child=serializers.CharField())
    external_id = serializers.CharField()
    attempt_count = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    started_at = Moment()
    ended_at = Moment()
    exit_code = serializers.IntegerField(allow_null=True)
    exit_signal = serializers.IntegerField(allow_null=True)
    progress = serializers.FloatField(allow_null=True, help_text="Share done, 0 to 1, as the job reports it.")
    progress_text = serializers.CharField()
    gpu_hours = Hours(help_text="Of ended attempts; null until one has ended.")
    cpu_hours = Hours()


class JobFactsOut(JobOut):
    script = serializers.CharField()
    environment = serializers.DictField(child=serializers.CharField())
    working_dir = serializers.CharField()
    reservation = serializers.CharField()
    constraints = serializers.CharField()
    expected_start_at = Moment(help_text="The scheduler's own estimate, while the job waits.")
    max_retries = serializers.IntegerField()
    parent_checkpoint = serializers.IntegerField(allow_null=True)
    copied_from = serializers.CharField(allow_null=True)
    updated_at = serializers.DateTimeField()


class JobMay(serializers.Serializer):
    cancel = serializers.BooleanField()
    hold = serializers.BooleanField()
    release = serializers.BooleanField()
    rerun = serializers.BooleanField()


class JobDetailOut(JobFactsOut):
    may = JobMay(help_text="What the asker may do to it now.")
    reserved_gpu_hours = Hours()
    reserved_cpu_hours = Hours()


class CheckOut(serializers.Serializer):
    dry_run = serializers.BooleanField()
    script = serializers.CharField()
    time_limit_s = serializers.IntegerField(allow_null=True)
    gpu_hours = Hours()
    cpu_hours = Hours()
    gpu_hours_left = Hours()
    cpu_hours_left = Hours()
    notes = serializers.ListField(child=serializers.CharField())


class JobsOut(serializers.Serializer):
    jobs = JobOut(many=True)


class SkippedOut(serializers.Serializer):
    id = serializers.CharField()
    why = serializers.CharField()


class CancelManyOut(serializers.Serializer):
    cancelled = serializers.ListField(child=serializers.CharField())
    skipped = SkippedOut(many=True)


class AttemptOut(serializers.Serializer):
    number = serializers.IntegerField()
    state = serializers.ChoiceField(choices=[state.value for state in JobState])
    reason = serializers.CharField()
    external_id = serializers.CharField(allow_null=True)
    restart_count = serializers.IntegerField()
    nodes = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()
    submitted_at = Moment()
    released_at = Moment()
    started_at = Moment()
    ended_at = Moment()
    exit_code = serializers.IntegerField(allow_null=True)
    exit_signal = serializers.IntegerField(allow_null=True)
    last_words = serializers.CharField()


class EventOut(serializers.Serializer):
    at = serializers.DateTimeField()
    kind = serializers.CharField()
    text = serializers.CharField()
    actor = serializers.CharField()
    attempt = serializers.IntegerField(allow_null=True)


class CheckpointOut(serializers.Serializer):
    id = serializers.IntegerField()
    path = serializers.CharField()
    step = serializers.IntegerField(allow_null=True)
    at = serializers.DateTimeField()
    attempt = serializers.IntegerField()


class SeriesOut(serializers.Serializer):
    name = serializers.CharField()
    count = serializers.IntegerField(help_text="Points the job wrote; the columns are thinned to about 1,200.")
    last_step = serializers.IntegerField(allow_null=True)
    last_value = serializers.FloatField(allow_null=True)
    steps = serializers.ListField(child=serializers.IntegerField())
    values = serializers.ListField(child=serializers.FloatField())  # type: ignore[assignment]


class MetricsOut(serializers.Serializer):
    attempt = serializers.IntegerField()
    skipped_lines = serializers.IntegerField()
    series = SeriesOut(many=True)


class FileOut(serializers.Serializer):
    name = serializers.CharField()
    path = serializers.CharField()
    is_folder = serializers.BooleanField()
    size_bytes = serializers.IntegerField(allow_null=True)
    modified_at = serializers.DateTimeField()


class FilesOut(serializers.Serializer):
    attempt = serializers.IntegerField()
    path = serializers.CharField()
    entries = FileOut(many=True)
    truncated = serializers.BooleanField()


STREAM_CHOICES = list(STREAMS)

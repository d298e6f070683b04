"""Jobs, their attempts, and what happened to them."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import F, Q, UniqueConstraint
from django.db.models.functions import Upper
from django.utils import timezone

from apps.core.ids import new_id
from apps.core.models import Timestamped
from apps.jobs.states import FINAL, JobState

STATE_CHOICES = [(s.value, s.value.replace("_", " ")) for s in JobState]


def new_job_id() -> str:
    return new_id("job")


class JobKind(models.TextChoices):
    TRAINING = "training", "training"
    FINE_TUNING = "fine_tuning", "fine-tuning"
    DATA = "data", "data"
    INFERENCE_BATCH = "inference_batch", "batch inference"
    TEST = "test", "test"


class Wanted(models.TextChoices):
    """What somebody asked for and a worker has yet to carry out."""

    NOTHING = "", "nothing"
    CANCEL = "cancel", "cancel"
    HOLD = "hold", "hold"
    RELEASE = "release", "release"


class Job(Timestamped):
    """What a person wants. The columns up to `tags` are its JobSpec; the rest is what became of it.

    Jobs that were born elsewhere have no project or submitter; `unix_user` and `account_name` are always kept.
    """

    public_id = models.CharField(max_length=24, unique=True, default=new_job_id, editable=False)
    project = models.ForeignKey("accounts.Project", null=True, on_delete=models.PROTECT, related_name="jobs")
    cluster = models.ForeignKey("inventory.Cluster", on_delete=models.PROTECT, related_name="jobs")
    submitted_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="jobs")
    unix_user = models.CharField(max_length=64, blank=True)
    account_name = models.CharField(max_length=100, blank=True)

    name = models.CharField(max_length=200)
    kind = models.CharField(max_length=20, choices=JobKind)
    script = models.TextField()
    environment = models.JSONField(default=dict)
    working_dir = models.CharField(max_length=1000, blank=True)
    partition = models.CharField(max_length=100, blank=True)
    nodes = models.PositiveIntegerField(default=1)
    accelerators_per_node = models.PositiveIntegerField(default=0)
    cpus_per_node = models.PositiveIntegerField(default=1)
    memory_bytes_per_node = models.BigIntegerField(null=True)
    time_limit_s = models.PositiveIntegerField(null=True)
    qos = models.CharField(max_length=100, blank=True)
    reservation = models.CharField(max_length=100, blank=True)
    constraints = models.CharField(max_length=500, blank=True)
    parent_checkpoint = models.ForeignKey("Checkpoint", null=True, on_delete=models.SET_NULL, related_name="children")
    max_retries = models.PositiveSmallIntegerField(default=0)
    tags = ArrayField(models.CharField(max_length=50), default=list, blank=True)

    copied_from = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="copies")
    state = models.CharField(max_length=20, choices=STATE_CHOICES, default=JobState.QUEUED)
    reason = models.CharField(max_length=1000, blank=True)
    is_held = models.BooleanField(default=False)
    wanted = models.CharField(max_length=10, choices=Wanted, default=Wanted.NOTHING, blank=True)
    wanted_reason = models.CharField(max_length=300, blank=True)
    attempt_count = models.PositiveIntegerField(default=0)
    external_id = models.CharField(max_length=64, blank=True, help_text="of the latest attempt")
    # Where a stuck or refused dispatch waits before it is tried again.
    not_before = models.DateTimeField(null=True)
    expected_start_at = models.DateTimeField(null=True, help_text="the scheduler's own estimate, while it waits")
    # Of an array: the tasks it has not started yet, as Slurm writes them, and how many may run at a time.
    is_array = models.BooleanField(default=False)
    waiting_tasks = models.TextField(blank=True)
    waiting_task_count = models.PositiveIntegerField(default=0)
    tasks_at_most = models.PositiveIntegerField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)
    exit_signal = models.PositiveSmallIntegerField(null=True)
    progress = models.FloatField(null=True, help_text="share done, 0 to 1, as the job itself reports it")
    progress_text = models.CharField(max_length=100, blank=True)
    # What the hours are counted in when it ends: filled by settle.
    gpu_hours = models.DecimalField(max_digits=18, decimal_places=6, null=True)
    cpu_hours = models.DecimalField(max_digits=18, decimal_places=6, null=True)

    class Meta:
        indexes = [
            models.Index(fields=["-id"], name="job_newest"),
            models.Index(fields=["project", "-id"], name="job_by_project"),
            models.Index(fields=["submitted_by", "-id"], name="job_by_person"),
            models.Index(fields=["cluster", "external_id"], name="job_by_external_id"),
            models.Index(fields=["state", "-id"], name="job_by_state"),
            models.Index(
                fields=["cluster", "state"], name="job_open", condition=~Q(state__in=sorted(s.value for s in FINAL))
            ),
            models.Index(fields=["cluster"], name="job_wanted", condition=~Q(wanted="")),
            GinIndex(OpClass(Upper("name"), name="gin_trgm_ops"), name="job_name_trgm"),
            GinIndex(fields=["tags"], name="job_tags"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(nodes__gte=1, cpus_per_node__gte=1), name="job_asks_for_something"),
            models.CheckConstraint(
                condition=Q(progress__isnull=True) | Q(progress__gte=0, progress__lte=1), name="job_progress_is_share"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


class JobAttempt(models.Model):
    """One try at the scheduler. `token` goes with the submit, so that the try can be found whatever happened.

    `claimed_until`: until then the worker that made the row may be talking to the scheduler; later anybody recovers it.
    """

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="attempts")
    cluster = models.ForeignKey("inventory.Cluster", on_delete=models.PROTECT, related_name="+")
    number = models.PositiveIntegerField()
    token = models.CharField(max_length=100, unique=True)
    external_id = models.CharField(max_length=64, null=True)
    task_index = models.PositiveIntegerField(null=True)
    restart_count = models.PositiveIntegerField(default=0)
    state = models.CharField(max_length=20, choices=STATE_CHOICES, default=JobState.DISPATCHING)
    reason = models.CharField(max_length=1000, blank=True)
    claimed_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=timezone.now)
    submitted_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    settled_at = models.DateTimeField(null=True)
    missing_since = models.DateTimeField(null=True, help_text="the scheduler no longer lists it")
    nodes = ArrayField(models.CharField(max_length=255), default=list, blank=True)
    # What the scheduler says it was given in all; None: what the job asked for is all that is known.
    cpus = models.PositiveIntegerField(null=True)
    accelerators = models.PositiveIntegerField(null=True)
    exit_code = models.IntegerField(null=True)
    exit_signal = models.PositiveSmallIntegerField(null=True)
    last_words = models.CharField(max_length=500, blank=True)
    folder = models.CharField(max_length=1000, blank=True)
    stdout_path = models.CharField(max_length=1000, blank=True)
    stderr_path = models.CharField(max_length=1000, blank=True)
    metrics_path = models.CharField(max_length=1000, blank=True)
    metrics_offset = models.BigIntegerField(default=0)
    metrics_skipped = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["number"]
        indexes = [
            models.Index(
                fields=["cluster", "state"],
                name="attempt_open",
                condition=~Q(state__in=sorted(s.value for s in FINAL)),
            ),
            models.Index(fields=["cluster"], name="attempt_unsettled", condition=Q(settled_at__isnull=True)),
            models.Index(fields=["cluster", "external_id"], name="attempt_by_external_id"),
        ]
        constraints = [
            UniqueConstraint(fields=["job", "number", "task_index"], name="attempt_number", nulls_distinct=False),
            UniqueConstraint(
                fields=["cluster", "external_id", "task_index", "submitted_at"],
                name="attempt_external_id",
                nulls_distinct=False,
                condition=Q(external_id__isnull=False),
            ),
        ]

    @property
    def key(self) -> str:
        """What allocations and accelerator uses know it by."""
        task = "" if self.task_index is None else f".{self.task_index}"
        return f"{self.job.public_id}:{self.number}{task}"

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


class JobEvent(models.Model):
    """Append-only facts, in words people read. `kind` is a dotted word, e.g. `state.running`, `cancel.asked`."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="events")
    attempt = models.ForeignKey(JobAttempt, null=True, on_delete=models.PROTECT, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=40)
    text = models.CharField(max_length=1000)
    actor_name = models.CharField(max_length=150, blank=True)

    class Meta:
        indexes = [models.Index(fields=["job", "id"])]


class Checkpoint(models.Model):
    """A file the job says it has saved; `path` is relative to the attempt's folder unless absolute."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="checkpoints")
    attempt = models.ForeignKey(JobAttempt, on_delete=models.PROTECT, related_name="checkpoints")
    path = models.CharField(max_length=1000)
    step = models.BigIntegerField(null=True)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        constraints = [UniqueConstraint(fields=["attempt", "path", "step"], name="one_row_per_checkpoint")]


class MetricSeries(models.Model):
    """One named metric of one attempt, thinned to a bounded number of points whatever its length.

    `data` is jobs.metricsfile.Series.to_dict(). The raw lines stay in the job's own file.
    """

    attempt = models.ForeignKey(JobAttempt, on_delete=models.CASCADE, related_name="series")
    name = models.CharField(max_length=100)
    count = models.BigIntegerField(default=0)
    last_step = models.BigIntegerField(null=True)
    last_value = models.FloatField(null=True)
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["name"]
        constraints = [UniqueConstraint(fields=["attempt", "name"], name="one_series_per_name")]


class SubmissionKey(models.Model):
    """An Idempotency-Key a person has used: the same key and body means the same jobs, another body is a conflict."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=64)
    job_ids = ArrayField(models.BigIntegerField(), default=list)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [UniqueConstraint(fields=["user", "key"], name="one_use_per_key")]
        indexes = [models.Index(F("created_at"), name="submission_key_age")]

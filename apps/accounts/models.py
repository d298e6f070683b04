"""People, projects, and the hours they may use."""

from __future__ import annotations

from decimal import Decimal

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import F, Q, UniqueConstraint
from django.utils import timezone
from knox.models import AbstractAuthToken

from apps.core.ids import new_id
from apps.core.models import Timestamped


def new_user_id() -> str:
    return new_id("person")


def new_project_id() -> str:
    return new_id("prj")


class User(AbstractUser):
    """A person. `is_operator` is the one site-wide role: sees everything, runs the site."""

    public_id = models.CharField(max_length=24, unique=True, default=new_user_id, editable=False)
    is_operator = models.BooleanField(default=False)
    must_change_password = models.BooleanField(default=False)
    time_zone = models.CharField(max_length=64, default="UTC")

    @property
    def display_name(self) -> str:
        return self.get_full_name() or self.username


class Project(Timestamped):
    """Who works and pays. `is_metered` False: hours are counted and never run out."""

    public_id = models.CharField(max_length=24, unique=True, default=new_project_id, editable=False)
    name = models.SlugField(max_length=60, unique=True)
    title = models.CharField(max_length=200, blank=True)
    description = models.TextField(max_length=4000, blank=True)
    is_metered = models.BooleanField(default=True)
    is_active = models.BooleanField(default=True)
    members = models.ManyToManyField(settings.AUTH_USER_MODEL, through="Membership", related_name="projects")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    VIEWER = "viewer", "viewer"
    MEMBER = "member", "member"
    LEAD = "lead", "lead"


class Membership(Timestamped):
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role)

    class Meta:
        ordering = ["project", "user__username"]
        constraints = [UniqueConstraint(fields=["project", "user"], name="one_membership_per_person")]


class UnixIdentity(Timestamped):
    """As whom a person's jobs run on one cluster. `uid` is set where we, not the cluster, resolve the name."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="unix_identities")
    cluster = models.ForeignKey("inventory.Cluster", on_delete=models.CASCADE, related_name="unix_identities")
    unix_user = models.CharField(max_length=64)
    uid = models.PositiveIntegerField(null=True)

    class Meta:
        constraints = [
            UniqueConstraint(fields=["user", "cluster"], name="one_identity_per_cluster"),
            UniqueConstraint(fields=["cluster", "uid"], name="one_person_per_uid", condition=Q(uid__isnull=False)),
        ]


class HourUnit(models.TextChoices):
    GPU = "gpu_hours", "GPU-hours"
    CPU = "cpu_hours", "CPU-hours"


class Allocation(Timestamped):
    """A grant of hours for a time. The entries are the truth; the two sums are kept with them, under its row lock."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="allocations")
    unit = models.CharField(max_length=10, choices=HourUnit)
    granted = models.DecimalField(max_digits=18, decimal_places=6)
    reserved = models.DecimalField(max_digits=18, decimal_places=6, default=Decimal(0))
    spent = models.DecimalField(max_digits=18, decimal_places=6, default=Decimal(0))
    starts_at = models.DateTimeField(default=timezone.now)
    ends_at = models.DateTimeField(null=True)
    note = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = [F("ends_at").asc(nulls_last=True), "id"]
        indexes = [models.Index(fields=["project", "unit"])]
        constraints = [
            models.CheckConstraint(condition=Q(granted__gt=0), name="allocation_grants_something"),
            models.CheckConstraint(condition=Q(reserved__gte=0, spent__gte=0), name="allocation_sums_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.granted:f} {self.get_unit_display()} for {self.project}"

    @property
    def left(self) -> Decimal:
        """Hours that can still be reserved; never below 0, though an overrun may have spent more than granted."""
        return max(Decimal(0), self.granted - self.reserved - self.spent)


class EntryKind(models.TextChoices):
    RESERVE = "reserve", "reserved"
    RELEASE = "release", "released"
    SPEND = "spend", "spent"


class AllocationEntry(models.Model):
    """Append-only. `ref` names the attempt (`<job id>:<number>`): each is reserved, released and spent at most once."""

    allocation = models.ForeignKey(Allocation, on_delete=models.PROTECT, related_name="entries")
    kind = models.CharField(max_length=10, choices=EntryKind)
    ref = models.CharField(max_length=64)
    hours = models.DecimalField(max_digits=18, decimal_places=6)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes = [models.Index(fields=["ref"]), models.Index(fields=["allocation", "-id"])]
        constraints = [
            UniqueConstraint(fields=["allocation", "kind", "ref"], name="one_entry_per_attempt_and_kind"),
            models.CheckConstraint(condition=Q(hours__gte=0), name="entry_hours_not_negative"),
        ]


class Notice(models.Model):
    """A line in a person's inbox. `key` makes one of several equal ones."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notices")
    key = models.CharField(max_length=120)
    level = models.CharField(max_length=10, choices=[("info", "info"), ("warn", "warning"), ("bad", "failure")])
    text = models.CharField(max_length=500)
    link = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    read_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["user", "-created_at"])]
        constraints = [UniqueConstraint(fields=["user", "key"], name="one_notice_per_key")]


class ApiToken(AbstractAuthToken):
    """A hashed, expiring, revocable token for scripts; `name` is for its owner."""

    name = models.CharField(max_length=100)
    last_used_at = models.DateTimeField(null=True)

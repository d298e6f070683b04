"""Rows every app may use."""

from __future__ import annotations

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.utils import timezone


class Timestamped(models.Model):
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        abstract = True


class Install(models.Model):
    """One row: who we are to the outside. `install_id` marks the jobs we hand to schedulers as ours."""

    install_id = models.CharField(max_length=32, unique=True)
    created_at = models.DateTimeField(default=timezone.now)


class AuditEntry(models.Model):
    """Append-only. Names are kept as text beside the ids, since what they name may be gone."""

    at = models.DateTimeField(default=timezone.now)
    verb = models.CharField(max_length=60)
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150)
    target_type = models.CharField(max_length=60)
    target_id = models.CharField(max_length=64)
    target_name = models.CharField(max_length=200, blank=True)
    project_id = models.BigIntegerField(null=True)
    before = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    after = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    via = models.CharField(max_length=20)
    ip = models.GenericIPAddressField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["-at", "-id"]),
            models.Index(fields=["target_type", "target_id", "-id"]),
            models.Index(fields=["actor", "-id"]),
        ]

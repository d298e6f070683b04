"""Region > Site > Hall > Rack: each place is in exactly one parent and has a name unique within it.

A place that is given up is retired, not deleted: what once stood there keeps its history. Its name brings it back.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q, UniqueConstraint

from apps.core.models import Timestamped


class Region(Timestamped):
    name = models.CharField(max_length=100, unique=True)
    retired_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Site(Timestamped):
    region = models.ForeignKey(Region, on_delete=models.PROTECT, related_name="sites")
    name = models.CharField(max_length=100)
    time_zone = models.CharField(max_length=64, default="UTC")
    retired_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["name"]
        constraints = [UniqueConstraint(fields=["region", "name"], name="site_name_in_region")]

    def __str__(self) -> str:
        return self.name


class Hall(Timestamped):
    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="halls")
    name = models.CharField(max_length=100)
    retired_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["name"]
        constraints = [UniqueConstraint(fields=["site", "name"], name="hall_name_in_site")]

    def __str__(self) -> str:
        return f"{self.site} / {self.name}"


class Rack(Timestamped):
    """`row` and `place` say where it stands in the hall; `power_limit_w` is what its feeds allow."""

    hall = models.ForeignKey(Hall, on_delete=models.PROTECT, related_name="racks")
    name = models.CharField(max_length=100)
    row = models.CharField(max_length=20, blank=True)
    place = models.PositiveSmallIntegerField(null=True, blank=True)
    height_u = models.PositiveSmallIntegerField(default=42)
    power_limit_w = models.PositiveIntegerField(null=True, blank=True)
    retired_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["row", "place", "name"]
        constraints = [
            UniqueConstraint(fields=["hall", "name"], name="rack_name_in_hall"),
            models.CheckConstraint(condition=Q(height_u__gte=1, height_u__lte=100), name="rack_height_sane"),
        ]

    def __str__(self) -> str:
        return self.name

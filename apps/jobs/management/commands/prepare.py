"""`manage.py prepare`: what a new install needs before anybody can sign in. Safe to run at every start."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand

from apps.jobs.first_rows import make_first_rows
from apps.jobs.local_cluster import open_local_cluster


class Command(BaseCommand):
    help = "Makes the first operator, the catalogue and, where it is on, the local cluster with a project to try it."

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("load_catalogue", verbosity=0)
        if settings.SWITCHYARD.local_cluster:
            open_local_cluster()
        first = make_first_rows()
        if first.password_file is not None:
            self.stdout.write(f"First sign-in: name {first.operator.username}, password in {first.password_file}")

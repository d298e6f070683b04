"""`manage.py stop_local_jobs`: end what runs on this machine, before the product itself stops."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.jobs.local_cluster import close_local_cluster


class Command(BaseCommand):
    help = "Ends the jobs that run on this machine, recorded as cancelled with the reason, and starts no more."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--reason", default="Switchyard was stopped")

    def handle(self, *args: Any, **options: Any) -> None:
        left = close_local_cluster(options["reason"])
        if left:
            raise CommandError(f"{left} jobs have not ended")

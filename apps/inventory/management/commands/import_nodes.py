"""Nodes from a table: `manage.py import_nodes nodes.csv --hall <site>/<hall> [--dry-run]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from apps.core.audit import audit_origin
from apps.core.errors import InvalidInput
from apps.inventory.importing import import_nodes
from apps.inventory.models import Hall


class Command(BaseCommand):
    help = "Add nodes, or bring them to what a CSV table says; its first line names the columns."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--hall", required=True, help="<site>/<hall>: where the racks stand")
        parser.add_argument("--dry-run", action="store_true", help="say what would change, and change nothing")

    def handle(self, *args: Any, file: Path, hall: str, dry_run: bool, **options: Any) -> None:
        site, _, name = hall.partition("/")
        place = Hall.objects.filter(site__name=site, name=name, retired_at__isnull=True).first()
        if place is None:
            raise CommandError(f"there is no hall {hall!r}; write it <site>/<hall>")
        try:
            with audit_origin("command"), transaction.atomic():
                done = import_nodes(file.read_bytes(), hall=place, by=None)
                transaction.set_rollback(dry_run)
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror or error}") from None
        except InvalidInput as error:
            raise CommandError(
                "\n".join(f"{file}: {text}" for text in error.fields.get("file", [error.message]))
            ) from None
        self.stdout.write(f"{'would be: ' if dry_run else ''}{done.summary()}")

"""`manage.py import_nodes nodes.csv --hall <site>/<hall> [--dry-run]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.audit import audit_origin
from apps.core.errors import InvalidInput
from apps.inventory.loading import import_nodes
from apps.inventory.models import Hall


class Command(BaseCommand):
    help = "Adds or moves nodes as a CSV table says: name, rack, and any of cluster, position, face, u_height, serial."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--hall", required=True, help="<site>/<hall>")
        parser.add_argument("--dry-run", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        site, _, name = options["hall"].partition("/")
        hall = Hall.objects.filter(site__name=site, name=name).first()
        if hall is None:
            raise CommandError(f"there is no hall {options['hall']!r}; write it <site>/<hall>")
        try:
            with audit_origin("command"):
                changes = import_nodes(options["file"].read_bytes(), hall, by=None, dry_run=options["dry_run"])
        except OSError as error:
            raise CommandError(str(error)) from None
        except InvalidInput as error:
            raise CommandError("\n".join(error.fields.get("file", [error.message]))) from None
        for change in changes:
            self.stdout.write(str(change))
        self.stdout.write(f"{len(changes)} changes" if changes else "nothing to change")

"""Bring the inventory to what a site manifest says: `manage.py load_manifest site.yaml [--dry-run]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.audit import audit_origin
from apps.core.errors import InvalidInput
from apps.inventory.loading import load_manifest, plan_manifest, read_manifest
from apps.inventory.manifest import ManifestError


class Command(BaseCommand):
    help = "Load a site manifest: places, racks, node types, clusters, partitions and nodes."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")

    def handle(self, *args: Any, file: Path, dry_run: bool, **options: Any) -> None:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror or error}") from None
        try:
            manifest = read_manifest(data, file=str(file))
            with audit_origin("command"):
                plan = plan_manifest(manifest) if dry_run else load_manifest(manifest, by=None)
        except ManifestError as error:
            raise CommandError("\n".join(error.lines())) from None
        except InvalidInput as error:
            texts = [text for texts in error.fields.values() for text in texts]
            raise CommandError("\n".join(f"{file}: {text}" for text in texts)) from None
        if options["verbosity"] == 0:
            return
        for change in plan.changes:
            self.stdout.write(str(change))
        self.stdout.write(f"{'would be: ' if dry_run else ''}{plan.summary()}")

"""`manage.py load_manifest site.yaml [--dry-run]`: what stands where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.audit import audit_origin
from apps.inventory.loading import load_manifest
from apps.inventory.manifest import ManifestError, parse_manifest
from apps.inventory.models import NodeType


class Command(BaseCommand):
    help = "Brings regions, halls, racks and nodes to what a site manifest says, and prints what changes."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--dry-run", action="store_true", help="print the changes and make none")

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["file"]
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{path} cannot be read: {error}") from None
        try:
            manifest = parse_manifest(text, str(path), set(NodeType.objects.values_list("name", flat=True)))
        except ManifestError as error:
            raise CommandError("\n".join(str(complaint) for complaint in error.complaints)) from None
        with audit_origin("command"):
            changes = load_manifest(manifest, by=None, dry_run=options["dry_run"])
        for change in changes:
            self.stdout.write(str(change))
        what = "would change" if options["dry_run"] else "changed"
        self.stdout.write(f"{len(changes)} {what}" if changes else "nothing to change")

"""`manage.py load_catalogue`: published figures of accelerators and node types."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from apps.inventory.catalogue_rows import load_catalogue


class Command(BaseCommand):
    help = "Writes the catalogue of accelerators and node types. Safe to run again."

    def handle(self, *args: Any, **options: Any) -> None:
        models, types = load_catalogue()
        if options["verbosity"] > 0:
            self.stdout.write(f"{models} accelerators, {types} node types")

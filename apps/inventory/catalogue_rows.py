"""The catalogue of accelerators and node types: published figures from our data files to rows."""

from __future__ import annotations

import csv
from pathlib import Path

from django.db import transaction

from apps.core.units import GIB
from apps.inventory.models import AcceleratorModel, NodeType

_FOLDER = Path(__file__).parent / "catalogue"
_GB = 10**9


@transaction.atomic
def load_catalogue() -> tuple[int, int]:
    """Accelerator models and node types written. Ours are brought up to date; rows a site has added stay."""
    models = {}
    for row in _rows("accelerators.csv"):
        models[row["name"]], _ = AcceleratorModel.objects.update_or_create(
            name=row["name"],
            defaults={
                "vendor": row["vendor"],
                "architecture": row["architecture"],
                "launch_year": _int(row["launch_year"]),
                "form": row["form"],
                # Vendors write GB for what is sold as GiB of HBM.
                "memory_bytes": _int(row["memory_gb"], GIB),
                "memory_bytes_per_s": _float(row["memory_gb_per_s"], _GB),
                "bf16_tflops": _float(row["bf16_tflops"]),
                "fp8_tflops": _float(row["fp8_tflops"]),
                "nvlink_bytes_per_s": _float(row["nvlink_gb_per_s"], _GB),
                "tdp_w": _int(row["tdp_w"]),
                "source": row["source"][:200],
            },
        )
    count = 0
    for row in _rows("node_types.csv"):
        NodeType.objects.update_or_create(
            name=row["name"],
            defaults={
                "vendor": row["vendor"],
                "accelerator_model": models.get(row["accelerator"]),
                "accelerators_per_node": _int(row["accelerators_per_node"]) or 0,
                "cpu_model": row["cpu"],
                "memory_bytes": _int(row["memory_gb"], GIB),
                "nics_per_node": _int(row["nics_per_node"]),
                "nic_bits_per_s": _int(row["nic_gbit_per_s"], 10**9),
                "fabric": row["fabric"],
                "power_max_w": _int(row["power_max_kw"], 1000),
                "source": row["source"][:200],
            },
        )
        count += 1
    return len(models), count


def _rows(name: str) -> list[dict[str, str]]:
    with (_FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _float(text: str, factor: float = 1.0) -> float | None:
    return float(text) * factor if text else None


def _int(text: str, factor: int = 1) -> int | None:
    return round(float(text) * factor) if text else None

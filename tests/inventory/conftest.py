"""A small site as a manifest says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MANIFEST = """\
version: 1
regions:
  - name: north
    sites:
      - name: Aurland
        time_zone: Europe/Oslo
        halls:
          - name: H1
            racks:
              - {names: "A[01-02]", row: A, place: 1, height_u: 42}
node_types:
  - {name: Box, cpus: 64, memory: 512G, height_u: 4}
clusters:
  - name: alpha
    scheduler: slurm
    site: Aurland
    nodes:
      - names: n[1-4]
        type: Box
        hall: H1
        racks: A[01-02]
        positions_u: [1, 5]
    partitions:
      - {name: train, default: true, nodes: "n[1-4]", max_time: 1-00:00:00}
"""


@pytest.fixture
def load(db: None) -> Callable[..., Any]:
    """Load the manifest, with parts of its text replaced: `load(("A02", "A03"))`."""
    from apps.inventory.loading import load_manifest, read_manifest

    def load_text(*changes: tuple[str, str], text: str = MANIFEST, by: Any = None) -> Any:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        return load_manifest(read_manifest(text.encode(), file="site.yaml"), by=by)

    return load_text

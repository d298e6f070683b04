from __future__ import annotations
from pathlib import Path
import pytest
from django.core.management import call_command
EX = Path(__file__).resolve().parents[2] / "examples/site.yaml"
def test_x(db, capsys):
    from apps.inventory.models import NodeType, Node, AcceleratorModel
    am=AcceleratorModel.objects.create(name="H100-80GB-SXM", vendor="NVIDIA")
    NodeType.objects.create(name="DGX H100", accelerator_model=am, accelerators_per_node=8, height_u=8)
    call_command("load_manifest", EX)
    call_command("load_manifest", EX)
    call_command("load_manifest", EX, dry_run=True)
    print(list(Node.objects.values_list("name","rack__name","position_u","state")))
    assert 0

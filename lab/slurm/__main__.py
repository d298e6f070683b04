"""`python -m lab.slurm up|down|wipe|status`."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

from lab.slurm.lab import LabError, SlurmLab, free_port
from lab.slurm.settings import Layout

BASE_DIR = Path(__file__).resolve().parent.parent.parent
HOME = Path("/var/lib/switchyard-lab")


def this_lab() -> SlurmLab:
    """The lab of this checkout. Its port is chosen once and kept beside it."""
    root = HOME / hashlib.sha256(str(BASE_DIR).encode()).hexdigest()[:12]
    port_file = root / "port"
    port = int(port_file.read_text()) if port_file.exists() else free_port()
    return SlurmLab(Layout(root=root, port=port))


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.slurm", description=__doc__)
    parser.add_argument("verb", choices=["up", "down", "wipe", "status"])
    verb = parser.parse_args().verb
    lab = this_lab()
    try:
        if verb == "up":
            lab.up()
            (lab.layout.root / "port").write_text(str(lab.layout.port))
            print(f"Slurm {'.'.join(map(str, lab.layout.release))} is up: {lab.layout.nodes} nodes, {lab.url}")
            print(f"For its commands: export SLURM_CONF={lab.layout.path('etc/slurm.conf')}")
        elif verb == "down":
            lab.down()
        elif verb == "wipe":
            lab.wipe()
        else:
            names = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmrestd")
            print(json.dumps({name: lab.is_up(name) for name in names}))
    except LabError as error:
        print(f"slurm lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

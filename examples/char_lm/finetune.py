"""Go on from a checkpoint of train.py with another text: the help pages that come with Python (English prose)."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import model
import training


def help_text() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rate", type=float, default=0.001, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parent", default=os.environ.get("SWITCHYARD_PARENT_CHECKPOINT"), help="a checkpoint.npz")
    chosen = parser.parse_args()
    if not chosen.parent:
        sys.exit("no checkpoint to start from: choose a parent checkpoint for the job, or give --parent")
    try:
        weights, step = model.load(Path(chosen.parent))
    except (OSError, ValueError) as error:
        sys.exit(f"the checkpoint {chosen.parent} cannot be read: {error}")
    print(f"starting from step {step:,} of {chosen.parent}", flush=True)
    training.train(
        weights,
        help_text(),
        steps=chosen.steps,
        rate=chosen.rate,
        seed=chosen.seed,
        folder=training.result_folder(),
    )

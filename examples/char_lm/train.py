"""Train the model on the text of Python's own standard library. About a minute on one core."""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import model
import training

MAX_CHARACTERS = 4_000_000


def library_text(limit: int = MAX_CHARACTERS) -> str:
    """Modules of the standard library, in the order of their names, up to `limit` characters."""
    parts, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        parts.append(text)
        size += len(text)
        if size >= limit:
            break
    return "".join(parts)[:limit]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--rate", type=float, default=0.003, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    training.train(
        model.new_weights(chosen.seed),
        library_text(),
        steps=chosen.steps,
        rate=chosen.rate,
        seed=chosen.seed,
        folder=training.result_folder(),
    )

"""Jobs to start with. Their scripts lie in the folder `examples/`."""

from __future__ import annotations

from dataclasses import dataclass

from apps.core.errors import NotFound
from apps.core.units import GIB
from apps.jobs.spec import JobSpec


@dataclass(frozen=True)
class Example:
    """`text` says in a sentence what the job does and how long it takes."""

    slug: str
    title: str
    text: str
    spec: JobSpec


EXAMPLES = (
    Example(
        "char-lm",
        "Train a small language model",
        "Learns Python from the source of Python's own library, character by character; about a minute on one core.",
        JobSpec(
            name="character model on the standard library",
            kind="training",
            script='exec "$SWITCHYARD_PYTHON" "$SWITCHYARD_EXAMPLES/char_lm/train.py" --steps 15000',
            cpus_per_node=1,
            memory_bytes_per_node=1 * GIB,
            time_limit_s=15 * 60,
            tags=("example",),
        ),
    ),
    Example(
        "char-lm-tune",
        "Fine-tune it on English prose",
        "Goes on from a checkpoint of the first example with Python's help pages; about half a minute.",
        JobSpec(
            name="character model tuned on help pages",
            kind="fine_tuning",
            script='exec "$SWITCHYARD_PYTHON" "$SWITCHYARD_EXAMPLES/char_lm/finetune.py" --steps 4000',
            cpus_per_node=1,
            memory_bytes_per_node=1 * GIB,
            time_limit_s=15 * 60,
            tags=("example",),
        ),
    ),
)


def example(slug: str) -> Example:
    for one in EXAMPLES:
        if one.slug == slug:
            return one
    raise NotFound(f"There is no example {slug}.")

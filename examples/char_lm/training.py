"""The loop both scripts share: train, report, save, and end cleanly when told to."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import model

BATCH = 256
REPORT_EVERY = 50
VALIDATE_EVERY = 500
SAVE_EVERY = 5000


class Reporter:
    """Appends to the file Switchyard reads, where there is one, and draws a bar for people."""

    def __init__(self) -> None:
        path = os.environ.get("SWITCHYARD_METRICS")
        self._file = open(path, "a", encoding="utf-8") if path else None  # noqa: SIM115  (open as long as the process)

    def metric(self, step: int, **values: float) -> None:
        for name, value in values.items():
            self._write({"step": step, "name": name, "value": value, "time": time.time()})

    def event(self, event: str, **facts: Any) -> None:
        self._write({"event": event, "time": time.time(), **facts})

    def bar(self, step: int, steps: int, text: str) -> None:
        done = round(30 * step / steps)
        print(f"\r[\x1b[32m{'#' * done}\x1b[0m{'.' * (30 - done)}] {step:,}/{steps:,}  {text}", end="", flush=True)

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


class Told(Exception):
    """The scheduler wants the job to end."""


def _on_term(number: int, frame: FrameType | None) -> None:
    raise Told


def train(weights: model.Weights, text: str, *, steps: int, rate: float, seed: int, folder: Path) -> float:
    """Train for `steps` steps and save a checkpoint; returns the loss on text held back, in nats a character."""
    signal.signal(signal.SIGTERM, _on_term)
    data = model.encode(text)
    held_back = len(data) // 20
    training, validation = data[:-held_back], data[-held_back:]
    print(f"{len(training):,} characters to learn from, {len(validation):,} held back", flush=True)
    reporter, adam = Reporter(), model.Adam(weights)
    random, checkpoint = np.random.default_rng(seed), folder / "checkpoint.npz"
    started = reported = time.monotonic()
    step = 0
    reporter.metric(0, val_loss=model.loss_on(weights, validation))
    try:
        for step in range(1, steps + 1):
            now_rate = rate * min(1.0, step / 50) * (0.1 + 0.9 * (1 - step / steps))
            loss, gradients = model.loss_and_gradients(weights, *model.batch(training, BATCH, random))
            adam.step(weights, gradients, now_rate)
            if step == 1:
                reporter.metric(step, loss=loss)
            if step % REPORT_EVERY == 0 or step == steps:
                now = time.monotonic()
                speed = REPORT_EVERY * BATCH / max(now - reported, 1e-9)
                reported = now
                reporter.metric(step, loss=loss, tokens_per_s=speed, learning_rate=now_rate)
                reporter.event("progress", share=step / steps, text=f"step {step:,} of {steps:,}")
                reporter.bar(step, steps, f"loss {loss:.3f}  {speed:,.0f} characters/s")
            if step % VALIDATE_EVERY == 0:
                reporter.metric(step, val_loss=model.loss_on(weights, validation))
            if step % SAVE_EVERY == 0 and step != steps:
                _save(weights, checkpoint, step, reporter)
    except Told:
        _save(weights, checkpoint, step, reporter)
        print(f"\ntold to end at step {step:,}; saved {checkpoint.name}", flush=True)
        sys.exit(143)
    final = model.loss_on(weights, validation)
    reporter.metric(steps, val_loss=final)
    _save(weights, checkpoint, steps, reporter)
    print(f"\ntrained {steps:,} steps in {time.monotonic() - started:.0f} s; loss on text held back {final:.3f} nats")
    print("a sample:\n" + model.sample(weights, "def ", 300, seed), flush=True)
    return final


def result_folder() -> Path:
    return Path(os.environ.get("SWITCHYARD_FOLDER") or ".")


def _save(weights: model.Weights, path: Path, step: int, reporter: Reporter) -> None:
    model.save(weights, path, step)
    reporter.event("checkpoint", path=path.name, step=step)

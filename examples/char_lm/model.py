"""A small character-level language model in numpy: the last 16 characters predict the next one.

Embedding -> one hidden layer (tanh) -> softmax over the characters, trained by Adam on cross-entropy (in nats).
Uniform guessing over the 96 characters costs ln 96 = 4.56 nats; the letters' frequencies alone about 3.3.
"""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHARACTERS = "".join(sorted(set(string.printable) - set("\t\r\x0b\x0c")))
CONTEXT = 16
EMBEDDING = 24
HIDDEN = 256
Weights = dict[str, NDArray[np.float32]]


def encode(text: str) -> NDArray[np.int64]:
    """Characters as numbers; what is not in the alphabet is left out."""
    place = {character: number for number, character in enumerate(CHARACTERS)}
    return np.array([place[c] for c in text.replace("\t", "    ") if c in place], dtype=np.int64)


def decode(numbers: NDArray[np.int64]) -> str:
    return "".join(CHARACTERS[int(n)] for n in numbers)


def new_weights(seed: int) -> Weights:
    """Random weights whose first predictions are nearly uniform, so that the loss starts near ln(alphabet)."""
    random = np.random.default_rng(seed)
    size, inputs = len(CHARACTERS), CONTEXT * EMBEDDING
    return {
        "embedding": random.normal(0, 0.1, (size, EMBEDDING)).astype(np.float32),
        "hidden": random.normal(0, inputs**-0.5, (inputs, HIDDEN)).astype(np.float32),
        "hidden_bias": np.zeros(HIDDEN, np.float32),
        "output": random.normal(0, 0.02, (HIDDEN, size)).astype(np.float32),
        "output_bias": np.zeros(size, np.float32),
    }


def batch(data: NDArray[np.int64], count: int, random: np.random.Generator) -> tuple[Any, Any]:
    """`count` random places: contexts of shape (count, CONTEXT) and the characters that follow, of shape (count,)."""
    starts = random.integers(0, len(data) - CONTEXT, count)
    return data[starts[:, None] + np.arange(CONTEXT)], data[starts + CONTEXT]


def loss_and_gradients(weights: Weights, contexts: Any, targets: Any) -> tuple[float, Weights]:
    """Mean cross-entropy in nats, and the gradient of each weight."""
    count = len(targets)
    inputs = weights["embedding"][contexts].reshape(count, -1)
    hidden = np.tanh(inputs @ weights["hidden"] + weights["hidden_bias"])
    shares = _softmax(hidden @ weights["output"] + weights["output_bias"])
    loss = float(-np.log(shares[np.arange(count), targets] + 1e-12).mean())
    d_logits = shares
    d_logits[np.arange(count), targets] -= 1
    d_logits /= count
    d_hidden = (d_logits @ weights["output"].T) * (1 - hidden**2)
    d_inputs = (d_hidden @ weights["hidden"].T).reshape(count, CONTEXT, EMBEDDING)
    # Sum by one-hot product: np.add.at is many times slower.
    one_hot = np.zeros((contexts.size, len(CHARACTERS)), np.float32)
    one_hot[np.arange(contexts.size), contexts.reshape(-1)] = 1
    return loss, {
        "embedding": one_hot.T @ d_inputs.reshape(-1, EMBEDDING),
        "hidden": inputs.T @ d_hidden,
        "hidden_bias": d_hidden.sum(0),
        "output": hidden.T @ d_logits,
        "output_bias": d_logits.sum(0),
    }


def loss_on(weights: Weights, data: NDArray[np.int64], count: int = 2048) -> float:
    """Loss on a fixed sample of `data`, for comparing."""
    contexts, targets = batch(data, count, np.random.default_rng(1))
    inputs = weights["embedding"][contexts].reshape(len(targets), -1)
    hidden = np.tanh(inputs @ weights["hidden"] + weights["hidden_bias"])
    shares = _softmax(hidden @ weights["output"] + weights["output_bias"])
    return float(-np.log(shares[np.arange(len(targets)), targets] + 1e-12).mean())


def sample(weights: Weights, start: str, length: int, seed: int) -> str:
    """Text the model writes by itself after `start`."""
    random = np.random.default_rng(seed)
    numbers = list(encode(" " * CONTEXT + start))
    for _ in range(length):
        context = np.array(numbers[-CONTEXT:])[None]
        hidden = np.tanh(weights["embedding"][context].reshape(1, -1) @ weights["hidden"] + weights["hidden_bias"])
        shares = _softmax((hidden @ weights["output"] + weights["output_bias"]) / 0.7)[0].astype(np.float64)
        numbers.append(int(random.choice(len(shares), p=shares / shares.sum())))
    return decode(np.array(numbers[CONTEXT:]))


class Adam:
    """Kingma and Ba 2015, with the usual decay rates."""

    def __init__(self, weights: Weights) -> None:
        self._first = {name: np.zeros_like(value) for name, value in weights.items()}
        self._second = {name: np.zeros_like(value) for name, value in weights.items()}
        self._steps = 0

    def step(self, weights: Weights, gradients: Weights, rate: float) -> None:
        self._steps += 1
        scale = rate * (1 - 0.999**self._steps) ** 0.5 / (1 - 0.9**self._steps)
        for name, gradient in gradients.items():
            first, second = self._first[name], self._second[name]
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient * gradient - second)
            weights[name] -= scale * first / (np.sqrt(second) + 1e-8)


def save(weights: Weights, path: Path, step: int) -> None:
    """Whole or not at all: a job may be ended at any moment."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        np.savez(file, step=step, **weights)
    os.replace(temporary, path)


def load(path: Path) -> tuple[Weights, int]:
    """Weights and the step they were saved at. Raises OSError or ValueError."""
    with np.load(path, allow_pickle=False) as data:
        return {name: data[name] for name in data.files if name != "step"}, int(data["step"])


def _softmax(logits: Any) -> Any:
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return shares

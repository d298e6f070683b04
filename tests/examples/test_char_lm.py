"""The examples really learn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import wait_until

HERE = Path(__file__).resolve().parent.parent.parent / "examples" / "char_lm"


def run(script: str, folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "SWITCHYARD_FOLDER": str(folder), "OMP_NUM_THREADS": "1", **env}
    environment["SWITCHYARD_METRICS"] = str(folder / "metrics.jsonl")
    return subprocess.run(
        [sys.executable, str(HERE / script), *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def values(folder: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["value"] for line in lines if line.get("name") == name]


def test_training_learns_and_fine_tuning_goes_on_from_there(tmp_path):
    trained = run("train.py", tmp_path / "a", "--steps", "1500")
    assert trained.returncode == 0, trained.stderr
    loss = values(tmp_path / "a", "loss")
    assert 4.3 < loss[0] < 4.8  # ln 96 = 4.56: nothing is known yet
    assert values(tmp_path / "a", "val_loss")[-1] < 2.5
    parent = tmp_path / "a" / "checkpoint.npz"
    tuned = run("finetune.py", tmp_path / "b", "--steps", "300", SWITCHYARD_PARENT_CHECKPOINT=str(parent))
    assert tuned.returncode == 0, tuned.stderr
    held_back = values(tmp_path / "b", "val_loss")
    assert held_back[0] < 4.0  # it starts with what it knows
    assert held_back[-1] < held_back[0]


def test_fine_tuning_without_a_parent_says_what_to_do(tmp_path):
    done = run("finetune.py", tmp_path / "b", SWITCHYARD_PARENT_CHECKPOINT="")
    assert done.returncode == 1
    assert "choose a parent checkpoint" in done.stderr


def test_a_job_that_is_told_to_end_saves_first(tmp_path):
    env = {**os.environ, "SWITCHYARD_FOLDER": str(tmp_path), "SWITCHYARD_METRICS": str(tmp_path / "metrics.jsonl")}
    process = subprocess.Popen([sys.executable, str(HERE / "train.py")], env=env, stdout=subprocess.PIPE)
    metrics = tmp_path / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and "progress" in metrics.read_text(), 60)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143
    assert (tmp_path / "checkpoint.npz").exists()

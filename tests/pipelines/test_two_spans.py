"""Tests two days at the command line: the first run is preempted and resumed, the second starts from its tables."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from support.two_days import write_day

pytestmark = [pytest.mark.slow, pytest.mark.tfx, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
CONFIG = """
data: {path: "days/{SPAN}/rows.csv", spans: {first: 1, last: 1}}
label: bought
split: {by: column, column: part, train: [a], eval: [b]}
features: {categorical: [item, shop]}
training: {epochs: 200, batch_size: 16, eval_every: 1000, checkpoint_every: 200, early_stopping: null}
evaluation: {metrics: [AUC], min_rows: 50}
"""
SECOND = ["data.spans={first: 2, last: 2}", "warm_start={checkpoint: pushed, new_rows: oov}"]
SECOND += ["vocabulary_evolution={base: pushed, mode: rerank, expire_after: 1}", "training.epochs=1"]


def start(folder, *changes):
    command = [sys.executable, "-m", "pipelines.commands.cli", "run", str(folder / "my.yaml")]
    command += [part for change in changes for part in ("--set", change)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(folder, *changes):
    process = start(folder, *changes)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    return json.loads((folder / "runs/my/report/report.json").read_text())


def preempt(folder):
    """Start a run, send SIGTERM when it has saved a training state, and return its exit code and stderr."""
    process = start(folder)
    while not list(folder.glob("runs/my/resume/*/step-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=400)
    return process.returncode, err


def checkpoint(folder, component):
    """Return the table and slots of `item` that a component wrote, and the tokens of its vocabulary."""
    (found,) = (path.parent for path in folder.glob(f"runs/my/artifacts/{component}/*/*/manifest.json"))
    reader = tf.train.load_checkpoint(str(found / "tables"))
    tokens = (found / "vocabularies/item.txt").read_text().split()
    return {key: reader.get_tensor(key) for key in ("item", "item/accumulators")}, tokens


def test_preempted_run_goes_on_and_next_day_starts_from_its_rows(tmp_path):
    (tmp_path / "my.yaml").write_text(CONFIG)
    before, now = write_day(tmp_path, 1, range(30)), write_day(tmp_path, 2, range(10, 40))
    code, said = preempt(tmp_path)
    assert code == 75, said
    assert "SIGTERM came: the state after step" in said
    *_, last, log = said.rstrip().splitlines()
    assert last.endswith("is saved; start the same run again to continue from there.")
    assert log.startswith("log: ")
    run(tmp_path)
    (history,) = tmp_path.glob("runs/my/artifacts/EmbeddingTrainer/model_run/*/history.json")
    assert json.loads(history.read_text())["facts"]["resumed_at"] > 0
    trained, tokens = checkpoint(tmp_path, "CheckpointRetriever")
    report = run(tmp_path, *SECOND)
    told = report["warm_start"]["tables"]["item"]
    counts = {"kept": len(now & before), "new": len(now - before), "dropped": len(before - now)}
    assert {key: told[key] for key in counts} == counts
    assert told["kept_traffic"] == pytest.approx(share_of(tmp_path, before), abs=1e-12)
    found, new_tokens = checkpoint(tmp_path, "CheckpointLoader")
    assert (set(tokens), set(new_tokens)) == (before, now)
    # The tokens that both days share changed their order, so their rows had to move.
    assert [token for token in new_tokens if token in before] != [token for token in tokens if token in now]
    for key, rows in found.items():
        for row, token in enumerate(new_tokens):
            # A new token starts from the OOV row, which was trained on unknown tokens.
            source = tokens.index(token) if token in before else len(tokens)
            np.testing.assert_array_equal(rows[row], trained[key][source])


def share_of(folder, tokens):
    """Return the share of the second day's train rows whose item is one of the tokens."""
    with open(folder / "days/2/rows.csv") as file:
        items = [row["item"] for row in csv.DictReader(file) if row["part"] == "a"]
    return sum(item in tokens for item in items) / len(items)

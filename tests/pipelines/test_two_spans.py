"""Tests at the command line that a preempted run says so, and that the same run, started again, goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.two_days import write_day

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


def start(folder):
    command = [sys.executable, "-m", "pipelines.commands.cli", "run", str(folder / "my.yaml")]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def preempt(folder):
    """Start a run, send SIGTERM when it has saved a training state, and return its exit code and stderr."""
    process = start(folder)
    while not list(folder.glob("runs/my/resume/*/step-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=400)
    return process.returncode, err


def test_preempted_run_goes_on_when_it_is_started_again(tmp_path):
    (tmp_path / "my.yaml").write_text(CONFIG)
    write_day(tmp_path, 1, range(30))
    code, said = preempt(tmp_path)
    assert code == 75, said
    assert "SIGTERM came: the state after step" in said
    *_, last, log = said.rstrip().splitlines()
    assert last.endswith("is saved; start the same run again to continue from there.")
    assert log.startswith("log: ")
    process = start(tmp_path)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    (history,) = tmp_path.glob("runs/my/artifacts/EmbeddingTrainer/model_run/*/history.json")
    assert json.loads(history.read_text())["facts"]["resumed_at"] > 0

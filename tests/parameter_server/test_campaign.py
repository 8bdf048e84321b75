"""The campaign `parameter-server`: seeds, kills, and a whole pipeline on a cluster."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.parameter_server import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
SEEDS = int(os.environ.get("SEEDS", "3"))
SECONDS = 1800


@pytest.fixture(scope="module")
def cluster():
    with clusters.running() as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("campaign")


def show(figures):
    """Print the figures that the campaign is for."""
    sys.stdout.write(f"{figures}\n")


def trained(cluster, folder, **settings):
    return clusters.run_chief(cluster, folder, "train", seconds=SECONDS, large=True, **settings)["train"]


def wait_for_checkpoint(folder, run, step):
    end, states = time.monotonic() + SECONDS, Path(folder) / f"{run}-resume"
    while not any(int(path.name[5:]) >= step for path in states.glob("step-*[0-9]")):
        assert time.monotonic() < end, "no checkpoint was written"
        time.sleep(0.2)


def test_auc_is_that_of_one_process(cluster, folder):
    aucs = {"cpu": [], "parameter_server": []}
    for seed in range(SEEDS):
        for strategy, found in aucs.items():
            result = trained(cluster, folder, strategy=strategy, seed=seed, run=f"{strategy}-{seed}")
            found.append(result["evals"][-1]["auc"])
            assert result["same_as_saved"]
    show(json.dumps(aucs))
    assert abs(statistics.mean(aucs["cpu"]) - statistics.mean(aucs["parameter_server"])) < 0.01


def test_a_killed_worker_is_replaced(cluster, folder):
    settings = {"large": True, "run": "worker", "checkpoint_every": 20, "eval_every": 1000}
    with clusters.started_chief(cluster, folder, "train", **settings) as chief:
        wait_for_checkpoint(folder, "worker", 20)
        cluster.kill("worker", 1)
        time.sleep(3)
        cluster.start("worker", 1)
        chief.wait(SECONDS)
    result = clusters.results_in(folder)["train"]
    show([result["facts"], result["evals"]])
    assert result["step"] == result["facts"]["steps_planned"]
    assert result["facts"]["resumed_at"] == 0
    assert result["evals"][-1]["auc"] > 0.77


def test_run_ended_by_a_killed_server_resumes_at_last_checkpoint(cluster, folder):
    settings = {"large": True, "run": "server", "checkpoint_every": 20, "eval_every": 1000}
    with clusters.started_chief(cluster, folder, "train", **settings) as chief:
        wait_for_checkpoint(folder, "server", 20)
        cluster.kill("ps", 1)
        chief.wait(SECONDS)
    ended = clusters.results_in(folder)["train"]
    assert ended["error"] == "TrainingError"
    assert "parameter server 1, or the connection to it, was lost" in ended["message"]
    cluster.start("ps", 1)
    cluster.wait_until_up()
    result = clusters.run_chief(cluster, folder, "train", seconds=SECONDS, **settings)["train"]
    show([result["facts"], result["evals"]])
    assert result["facts"]["resumed_at"] >= 20
    assert result["step"] == result["facts"]["steps_planned"]
    assert result["evals"][-1]["auc"] > 0.77
    assert result["same_as_saved"]


def test_a_pipeline_trains_on_the_cluster_proves_and_pushes(cluster, tmp_path):
    settings = [f"work_dir={tmp_path / 'work'}", "training.strategy=parameter_server", "training.epochs=4"]
    command = [str(Path(sys.executable).with_name("tfx-embeddings")), "run", "pipelines/examples/taxi.yaml"]
    for setting in settings:
        command += ["--set", setting]
    environment = {**os.environ, "TF_CONFIG": cluster.config, "CUDA_VISIBLE_DEVICES": ""}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert list((tmp_path / "work").glob("**/saved_model.pb"))
    (history,) = (tmp_path / "work").glob("**/model_run/**/history.json")
    assert json.loads(history.read_text())["facts"]["device"] == "parameter_server"

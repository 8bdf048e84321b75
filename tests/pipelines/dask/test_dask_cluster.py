"""Runs Beam's components, and the whole demo, on a Dask cluster of three processes; kills a worker midway.

The campaign `dask` runs only this test and the short ones of Dask.
"""

import filecmp
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipelines.dask.beam_runner import on_dask
from tests.components.test_beam_runners import PARTS, WORKERS, count, ingest

pytestmark = [pytest.mark.tfx, pytest.mark.slow]

PROJECT = Path(__file__).parents[3]
LOCAL = ("--host", "127.0.0.1", "--no-dashboard")


class Cluster:
    """A scheduler and its workers, each a process of one thread on the loopback address; Arrow has one thread in each.

    Attributes:
      address: address of the scheduler.
      workers: the processes of the workers, in the order of their start.
    """

    def __init__(self, folder):
        """Start the scheduler on a free port; wait until it answers."""
        folder.mkdir()
        self._folder, self.workers = folder, []
        file = folder / "scheduler.json"
        self.scheduler = self._start("dask_scheduler", "scheduler", "--port", "0", "--scheduler-file", str(file))
        while not file.exists() or not file.read_text().endswith("}"):
            assert self.scheduler.poll() is None, (folder / "scheduler.log").read_text()[-2000:]
            time.sleep(0.1)
        self.address = json.loads(file.read_text())["address"]

    def add_worker(self):
        """Start a worker, without a nanny that would start it again if it died."""
        name = f"worker-{len(self.workers)}"
        scratch = ("--local-directory", str(self._folder / name))
        self.workers.append(self._start("dask_worker", name, self.address, "--no-nanny", "--nthreads", "1", *scratch))

    def _start(self, program, name, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), "TF_USE_LEGACY_KERAS": "1", "OMP_NUM_THREADS": "1"}
        with open(self._folder / f"{name}.log", "wb") as log:
            command = [sys.executable, "-W", "ignore", "-m", f"distributed.cli.{program}", *arguments, *LOCAL]
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


@pytest.fixture
def cluster(tmp_path):
    """Run a cluster of two workers; end its processes by their ids."""
    cluster = Cluster(tmp_path / "cluster")
    try:
        for _ in range(2):
            cluster.add_worker()
        yield cluster
    finally:
        for process in (*cluster.workers, cluster.scheduler):
            process.kill()
            process.wait()


class Killing:
    """Kills a worker as soon as a file of the pattern appears."""

    def __init__(self, worker, folder, pattern):
        self.worker = worker
        self.killed = False
        self._look = threading.Thread(target=self._wait, args=(folder, pattern), daemon=True)
        self._look.start()

    def _wait(self, folder, pattern):
        for _ in range(60_000):
            if any(folder.glob(pattern)):
                self.worker.kill()
                self.killed = True
                return
            time.sleep(0.01)


@pytest.fixture
def rows(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    for part in range(16):
        lines = ["user,item,price"]
        lines += [
            f"u{n % 997},i{n * n % 10007}|i{n % 7},{n * 0.5}" for n in range(part * 20_000, part * 20_000 + 20_000)
        ]
        (folder / f"part-{part:02d}.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.timeout(1800)
def test_a_killed_worker_changes_no_byte(cluster, rows, tmp_path):
    from pipelines.local.metadata_repair import read_content

    here = tmp_path / "here"
    expected = ingest(rows, here, WORKERS["in_memory"])
    vocabularies = count(expected, here, WORKERS["in_memory"])
    ingest(rows, tmp_path / "warm", [*on_dask(cluster.address)])  # the workers have then loaded TFX

    killing = Killing(cluster.workers[0], tmp_path / "dask/examples/1", ".staging-*/Ingest-*.json")
    examples = ingest(rows, tmp_path / "dask", [*on_dask(cluster.address)])
    assert killing.killed
    assert read_content(examples.uri).digest == read_content(expected.uri).digest

    cluster.add_worker()
    assert count(examples, tmp_path / "whole", [*on_dask(cluster.address)]) == vocabularies
    killing = Killing(cluster.workers[1], tmp_path / "parts/vocabularies", "parts/item/*")
    assert count(examples, tmp_path / "parts", [*on_dask(cluster.address)], PARTS) == vocabularies
    assert killing.killed


def run_demo(folder, *settings):
    taxi = PROJECT / "pipelines/examples/taxi.yaml"
    given = [f"work_dir={folder}", "evaluation.engine=tfma", "data.statistics=exact", "vocabularies.company.parts=3"]
    command = [sys.executable, "-m", "pipelines.commands.cli", "run", str(taxi)]
    command += [part for setting in (*given, *settings) for part in ("--set", setting)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "artifacts"


SAME = (
    "ExampleGen/examples", "VocabularyGen/vocabularies", "TableConfigGen/table_configs",
    "CheckpointRetriever/embedding_checkpoint", "EmbeddingPusher/pushed_model",
)  # fmt: skip
NAMES_OF_OPERATIONS = {"saved_model.pb", "fingerprint.pb"}  # they differ from run to run, wherever Beam works


def differences(first, second, below):
    """List the files that differ, or are in one folder only."""
    left, other = ({path.relative_to(root): path for path in (root / below).rglob("*")} for root in (first, second))
    files = {name for name in {*left, *other} if not {".system", *NAMES_OF_OPERATIONS} & set(name.parts)}
    files = {name for name in files if not name.name.endswith(".lineage.json")}
    return sorted(
        str(name)
        for name in files
        if name not in left
        or name not in other
        or (left[name].is_file() and not filecmp.cmp(left[name], other[name], shallow=False))
    )


@pytest.mark.timeout(3600)
def test_demo_on_dask_with_a_killed_worker_trains_same_tables(cluster, tmp_path):
    here = run_demo(tmp_path / "here")
    dask = tmp_path / "dask"
    killing = Killing(cluster.workers[0], dask / "artifacts/VocabularyGen", "vocabularies/*")
    run_demo(dask, "beam.runner=dask", f"beam.address={cluster.address}")
    assert killing.killed
    assert {below: differences(here, dask / "artifacts", below) for below in SAME} == {below: [] for below in SAME}

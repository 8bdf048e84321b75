"""Starts a Dask cluster on this machine: a scheduler and workers, each a process of one thread on the loopback address.

Arrow has one thread in each too, as in the workers that Dask's nanny starts. The processes are ended, by their ids,
when the block ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_SECONDS = 120
_LOCAL = ("--host", "127.0.0.1", "--no-dashboard")
_PROJECT = Path(__file__).parents[3]


class Cluster:
    """A scheduler and its workers.

    Attributes:
      address: address of the scheduler.
      workers: the processes of the workers, in the order of their start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        """Start the scheduler on a free port; wait until it answers."""
        file = self._folder / "scheduler.json"
        process = self._start("dask_scheduler", "scheduler", "--port", "0", "--scheduler-file", str(file))
        for _ in range(_SECONDS * 10):
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                self.address = json.loads(file.read_text())["address"]
                return process
            assert process.poll() is None, (self._folder / "scheduler.log").read_text()[-2000:]
            time.sleep(0.1)
        raise TimeoutError((self._folder / "scheduler.log").read_text()[-2000:])

    def add_worker(self) -> subprocess.Popen[bytes]:
        """Start a worker, without a nanny that would start it again if it died."""
        name = f"worker-{len(self.workers)}"
        scratch = ("--local-directory", str(self._folder / name))
        worker = self._start("dask_worker", name, self.address, "--no-nanny", "--nthreads", "1", *scratch)
        self.workers.append(worker)
        return worker

    def _start(self, program: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(_PROJECT), "TF_USE_LEGACY_KERAS": "1", "OMP_NUM_THREADS": "1"}
        with open(self._folder / f"{name}.log", "wb") as log:
            command = [sys.executable, "-W", "ignore", "-m", f"distributed.cli.{program}", *arguments, *_LOCAL]
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


@contextlib.contextmanager
def running_cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Run a cluster that keeps its logs and scratch files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder)
    scheduler = cluster.start_scheduler()
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        for process in (*cluster.workers, scheduler):
            process.kill()
            process.wait()

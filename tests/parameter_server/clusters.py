"""Starts parameter servers and workers as processes on loopback, kills them and starts them again."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHIEF = Path(__file__).with_name("chief.py")


def free_addresses(count):
    sockets = [socket.socket() for _ in range(count)]
    for connection in sockets:
        connection.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{connection.getsockname()[1]}" for connection in sockets]
    for connection in sockets:
        connection.close()
    return addresses


class Cluster:
    """Servers and workers that run; `config` is the TF_CONFIG of the chief."""

    def __init__(self, folder, *, servers=2, workers=2):
        chief, *others = free_addresses(1 + servers + workers)
        self.addresses = {"chief": [chief], "worker": others[:workers], "ps": others[workers:]}
        self.config = self._config("chief", 0)
        self._folder = str(folder)
        self._processes = {}
        for kind in ("worker", "ps"):
            for index in range(len(self.addresses[kind])):
                self.start(kind, index)

    def _config(self, kind, index):
        return json.dumps({"cluster": self.addresses, "task": {"type": kind, "index": index}})

    def start(self, kind, index):
        given = {"TF_CONFIG": self._config(kind, index), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
        with open(os.path.join(self._folder, f"{kind}-{index}.log"), "ab") as log:
            self._processes[kind, index] = subprocess.Popen(
                [sys.executable, "-m", "embedding_core.parameter_server.worker"],
                env={**os.environ, **given},
                stdout=log,
                stderr=log,
            )

    def kill(self, kind, index):
        self._processes[kind, index].send_signal(signal.SIGKILL)
        self._processes[kind, index].wait()

    def restart_all(self):
        for kind, index in list(self._processes):
            self.kill(kind, index)
            self.start(kind, index)

    def wait_until_up(self, seconds=120):
        """Wait until every task accepts connections."""
        for kind, index in self._processes:
            host, port = self.addresses[kind][index].split(":")
            end = time.monotonic() + seconds
            while True:
                with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                    break
                assert time.monotonic() < end, f"{kind} {index} does not answer at {host}:{port}"
                assert self._processes[kind, index].poll() is None, f"{kind} {index} ended"
                time.sleep(0.2)

    def stop(self):
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()


@contextlib.contextmanager
def running(**sizes):
    """Run a cluster whose tasks end with the block."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(folder, **sizes)
        try:
            cluster.wait_until_up()
            yield cluster
        finally:
            cluster.stop()


@contextlib.contextmanager
def started_chief(cluster, folder, mode, **settings):
    """Start a chief, and end it with the block; `folder` gets `out.json` and `chief.log`."""
    out = Path(folder) / "out.json"
    out.unlink(missing_ok=True)
    arguments = ["--folder", str(folder), "--settings", json.dumps({"strategy": "parameter_server", **settings})]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": ""}
    with open(Path(folder) / "chief.log", "w") as log:
        chief = subprocess.Popen(
            [sys.executable, str(CHIEF), mode, str(out), *arguments],
            env={**environment, "TF_CONFIG": cluster.config},
            stdout=log,
            stderr=log,
        )
        try:
            yield chief
        finally:
            chief.kill()
            chief.wait()


def results_in(folder):
    """Return what a chief wrote, or fail with the end of its log."""
    out, log = Path(folder) / "out.json", Path(folder) / "chief.log"
    if not out.exists():
        raise AssertionError("\n".join(log.read_text().splitlines()[-30:]))
    return json.loads(out.read_text())


def run_chief(cluster, folder, mode, *, seconds=500, **settings):
    """Run a chief to its end, and return its results."""
    with started_chief(cluster, folder, mode, **settings) as chief:
        chief.wait(seconds)
    return results_in(folder)

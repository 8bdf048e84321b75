"""Tests Triton on pushed versions: they appear, are loaded and go, and every answer is that of a version."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import json
import pickle
import subprocess
import sys
import threading

import pytest

from components.pusher.publish import keep_newest, publish
from components.pusher.rollback import roll_back
from components.pusher.served import served_versions
from components.pusher.triton_model import write_triton_model
from embedding_core.serving.loaded_version import LoadedVersion
from tests.deltas.worlds import World
from tests.servers import real_servers
from tests.servers.real_servers import HERE, NEEDS_SERVERS, PYTHON, answers, triton, wait_until

pytestmark = [NEEDS_SERVERS, pytest.mark.timeout(7200)]


class Models:
    """Exports of a world that changes, the rows to ask for, and a folder of versions that starts with the first."""

    def __init__(self, folder, count=3):
        world = World.of(11)
        self.base, self.exports = folder / "repository" / "taxi", []
        for number in range(count):
            self.exports.append(world.export(folder / f"model{number}", deltas=False))
            world.step()
        rows = world.requests(60)
        self.batches = [rows[start : start + size] for start in range(0, 60, 15) for size in (1, 4, 15)]
        self.rows_file = folder / "rows"
        self.rows_file.write_bytes(pickle.dumps(self.batches))
        self.expected = {}
        self.push(0)

    def push(self, number):
        return self._known(publish(self.exports[number], self.base, check=lambda path: {}))

    def roll_back(self):
        return self._known(roll_back(self.base))

    def _known(self, published):
        """Compute the answers of a version in this process, before anyone removes it."""
        with LoadedVersion(published.path) as loaded:
            logits = [loaded.answer("serving_default", rows)["logit"].tobytes().hex() for rows in self.batches]
        self.expected[str(published.version)] = logits
        return published.version


@pytest.fixture
def models(tmp_path):
    made = Models(tmp_path)
    real_servers.backends(tmp_path / "backends")
    write_triton_model(made.base, "serving_default", tmp_path / "backends")
    return made


class Load:
    """Requests from a process of their own."""

    def __init__(self, servers, models, requests, threads=4):
        command = [PYTHON, HERE / "asking.py", servers, "taxi", models.rows_file, str(requests), str(threads)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._output, self._thread = None, threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        self._output = self._process.communicate()

    def goes_on(self):
        return self._process.poll() is None

    def report(self):
        self._thread.join()
        assert self._process.returncode == 0, self._output[1][-3000:]
        return json.loads(self._output[0])


def wrong_answers(report, expected):
    return [one for one in report["answers"] if expected.get(one[0], {one[1]: None})[one[1]] != one[2]]


@pytest.mark.parametrize("requests", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_load_during_pushes_rollbacks_and_keep_last(models, tmp_path, requests):
    """Each answer is, to the bit, that of the version that it names; none fails."""
    log, done = tmp_path / "triton.log", {"push": 0, "rollback": 0, "removed": 0}
    with triton(models.base.parent, tmp_path / "backends", log) as (http, grpc):
        load = Load(f"kserve-v2-http={http},kserve-v2-grpc={grpc}", models, requests)
        while load.goes_on() or not done["removed"]:
            version = models.push(1 + done["push"] % 2)
            done["push"] += 1
            wait_until(lambda at=version: answers(ready(http, at)), 300, log)
            version = models.roll_back()
            done["rollback"] += 1
            wait_until(lambda at=version: answers(ready(http, at)), 300, log)
            done["removed"] += len(keep_newest(models.base, 2))
        seen = load.report()
        assert not answers(ready(http, min(map(int, models.expected)))), "a version that was removed is served"
    figures = {"requests": requests, "errors": sum(seen["errors"].values()), **done, "versions": len(models.expected)}
    figures |= {"served": len({one[0] for one in seen["answers"]}), "wrong": len(wrong_answers(seen, models.expected))}
    sys.stdout.write(json.dumps({**figures, "seconds": seen["seconds"], "quantiles": seen["quantiles"]}) + "\n")
    assert seen["errors"] == {}
    assert wrong_answers(seen, models.expected) == []
    assert sum(one[3] for one in seen["answers"]) == requests
    assert figures["served"] > 1
    assert len(served_versions(models.base)) == 2


def ready(port, version):
    return f"http://127.0.0.1:{port}/v2/models/taxi/versions/{version}/ready"

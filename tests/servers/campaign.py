"""Asks a real server for answers while versions are pushed, rolled back and removed, and compares every answer."""

import json
import pickle
import subprocess
import sys
import threading

import tensorflow as tf

from components.pusher.publish import keep_newest, publish, roll_back
from components.pusher.served import served_versions
from tests.servers.real_servers import HERE, PYTHON, wait_until
from tests.support.worlds import World


class Models:
    """Exports of a world that changes, the rows to ask for, and a folder of versions that starts with the first."""

    def __init__(self, folder, count=3):
        world = World.of(11)
        self.base, self.exports = folder / "repository" / "taxi", []
        for number in range(count):
            self.exports.append(world.export(folder / f"model{number}"))
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
        answer = tf.saved_model.load(published.path).signatures["serving_default"]
        logits = [answer(examples=tf.constant(rows))["logit"].numpy().tobytes().hex() for rows in self.batches]
        self.expected[str(published.version)] = logits
        return published.version


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


def ask_while_versions_change(models, servers, is_served, log, requests):
    """Push, roll back and remove versions in turns until all requests are answered.

    Args:
      servers: protocols and ports, as `asking.py` takes them.
      is_served: function of a version that returns whether the server answers with it now.
      log: the server's log.
      requests: number of requests in all.
    """
    done, load = {"push": 0, "rollback": 0, "removed": 0}, Load(servers, models, requests)
    while load.goes_on() or not done["removed"]:
        version = models.push(1 + done["push"] % 2)
        done["push"] += 1
        wait_until(lambda at=version: is_served(at), 300, log)
        version = models.roll_back()
        done["rollback"] += 1
        wait_until(lambda at=version: is_served(at), 300, log)
        done["removed"] += len(keep_newest(models.base, 2))
    seen = load.report()
    wrong = [answer for answer in seen["answers"] if models.expected[answer[0]][answer[1]] != answer[2]]
    figures = {
        "requests": requests,
        "answered": sum(answer[3] for answer in seen["answers"]),
        "errors": sum(seen["errors"].values()),
        "wrong": sum(answer[3] for answer in wrong),
        **done,
        "served": len({answer[0] for answer in seen["answers"]}),
        "seconds": seen["seconds"],
        "quantiles": seen["quantiles"],
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    assert seen["errors"] == {}
    assert wrong == []
    assert figures["answered"] == requests
    assert figures["served"] > 1
    assert len(served_versions(models.base)) == 2

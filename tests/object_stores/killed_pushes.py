"""Pushes versions to an address in processes that are killed at random moments.

    python -m tests.object_stores.killed_pushes ADDRESS TRIALS SEED FOLDER

A reader polls meanwhile, and verifies every version that a server would load. The program prints a JSON object with its
counts.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import tensorflow as tf

from components.pusher.publish import publish
from components.pusher.served import MODEL, served_versions, verify_version
from embedding_core.errors import CheckpointError

SIZES = {
    "saved_model.pb": 300_000,
    "variables/variables.data-00000-of-00001": 900_000,
    "variables/variables.index": 300,
}
KEPT = 3


def push(base, folder, seed):
    """Push files of random bytes."""
    chance = random.Random(seed)
    for name, size in SIZES.items():
        path = Path(folder, str(seed), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(size))
    return publish(os.path.join(folder, str(seed)), base, check=lambda _: {"seed": seed}, keep_last=KEPT)


def look(base):
    """Verify the versions that a server would load; return how many were whole, and what was wrong with others."""
    whole, wrong = 0, []
    for number in served_versions(base):
        path = f"{base}/{number}"
        if not tf.io.gfile.exists(f"{path}/{MODEL}"):
            continue
        try:
            verify_version(path)
            whole += 1
        except (CheckpointError, OSError) as error:
            if tf.io.gfile.exists(f"{path}/{MODEL}"):  # else the pusher removed it meanwhile
                wrong.append(f"{number}: {error}")
    return whole, wrong


def forked(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
    return child


def watch(base, folder):
    counts = {"looks": 0, "whole": 0, "wrong": []}
    while not os.path.exists(f"{folder}/stop"):
        whole, wrong = look(base)
        counts["looks"] += 1
        counts["whole"] += whole
        counts["wrong"] += wrong
    Path(folder, "watched.json").write_text(json.dumps(counts))


def main(address, trials, seed, folder):
    base, chance = f"{address}/served", random.Random(int(seed))
    began = time.monotonic()
    assert os.waitpid(forked(lambda: push(base, folder, 0)), 0)[1] == 0
    one_push = time.monotonic() - began
    watcher = forked(lambda: watch(base, folder))
    killed = failed = 0
    for trial in range(1, int(trials) + 1):
        child = forked(lambda trial=trial: push(base, folder, trial))
        if trial % 4:
            time.sleep(chance.uniform(0, 1.1 * one_push))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        killed += os.WIFSIGNALED(status)
        failed += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
    Path(folder, "stop").touch()
    assert os.waitpid(watcher, 0)[1] == 0
    watched = json.loads(Path(folder, "watched.json").read_text())
    assert os.waitpid(forked(lambda: push(base, folder, int(trials) + 1)), 0)[1] == 0
    whole, wrong = look(base)
    seconds = round(time.monotonic() - began)
    report = {"trials": int(trials), "killed": killed, "failed": failed, **watched, "seconds": seconds}
    report |= {"left": served_versions(base), "left_whole": whole, "left_wrong": wrong}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

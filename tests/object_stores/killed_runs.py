"""Kills the demo while it uploads checkpoints to an address, and runs it until it ends; compares its tables.

    python -m tests.object_stores.killed_runs ADDRESS KILLS SEED FOLDER

The tables are compared with those of a run that nobody kills. The first kills come while training saves its state, the
others while CheckpointRetriever writes its checkpoint. After each kill, every checkpoint that has a manifest is
verified. The program prints a JSON object with its counts.
"""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import tensorflow as tf

from embedding_core.checkpoint import verify
from embedding_core.errors import CheckpointError

RETRIEVED = "artifacts/CheckpointRetriever/embedding_checkpoint"
SHORT = ("training.epochs=2", "training.checkpoint_every=10")
SECONDS = 600  # for one run
_OF_TWO_STATES = 12  # objects of two saved states, some of which are under a name for the time of the upload


def start(address, folder):
    command = [sys.executable, "-m", "tests.object_stores.demo_run", address, folder, *SHORT]
    with open(Path(folder, "log"), "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def objects(address, place):
    return len(tf.io.gfile.glob(f"{address}/{place}"))


def killed_while_it_uploads(address, folder, place, chance, more):
    """Kill a run shortly after a place has so many more objects; return whether it was killed before its end."""
    before, process = objects(address, place), start(address, folder)
    end = time.monotonic() + SECONDS
    while process.poll() is None and objects(address, place) < before + more and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 0.6))
    process.kill()
    return process.wait() < 0


def checkpoints(address):
    """Verify the retrieved checkpoints that have a manifest; return the digests of their files, and what is wrong."""
    found, wrong = {}, []
    for path in sorted(tf.io.gfile.glob(f"{address}/{RETRIEVED}/*/manifest.json")):
        try:
            files = verify(path.removesuffix("/manifest.json")).files
            found[path] = {name: digest for name, digest in files.items() if name.startswith("tables.data")}
        except CheckpointError as error:
            wrong.append(f"{path}: {error}")
    return found, wrong


def finished(address, folder):
    """Run to the end; return the digests of the tables of the newest checkpoint."""
    process = start(address, folder)
    assert process.wait(SECONDS) == 0, Path(folder, "log").read_text()[-3000:]
    found, wrong = checkpoints(address)
    assert not wrong, wrong
    return found[max(found, key=lambda path: int(path.split("/")[-2]))]


def resumed_at(address):
    """Return the step at which each finished training began."""
    found = tf.io.gfile.glob(f"{address}/artifacts/EmbeddingTrainer/model_run/*/history.json")
    return [json.loads(tf.io.gfile.GFile(path).read())["facts"].get("resumed_at") for path in found]


def main(address, kills, seed, folder):
    chance, began, wrong = random.Random(int(seed)), time.monotonic(), []
    calm, killed = Path(folder, "calm"), Path(folder, "killed")
    for run in (calm, killed):
        run.mkdir()
    expected = finished(f"{address}/calm", str(calm))
    counts = {"state": 0, "retrieved": 0}
    for number in range(int(kills)):
        kind = "state" if number < int(kills) // 2 else "retrieved"
        place = "resume/*/*/*" if kind == "state" else f"{RETRIEVED}/*/*"
        more = 1 + _OF_TWO_STATES * number if kind == "state" else 1  # so that the second kill leaves a whole state
        counts[kind] += killed_while_it_uploads(f"{address}/killed", str(killed), place, chance, more)
        wrong += checkpoints(f"{address}/killed")[1]
    tables = finished(f"{address}/killed", str(killed))
    report = {"killed": counts, "wrong": wrong, "equal": tables == expected, "files": len(tables)}
    report |= {"resumed_at": resumed_at(f"{address}/killed"), "seconds": round(time.monotonic() - began)}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

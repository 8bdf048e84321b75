"""Kills a process that saves, at every call that changes files or at random moments, or fills its disk.

``python -m tests.faults.saving <campaign> <trials> <seed> <folder>`` with `interpose.c` preloaded prints one line of
JSON. TensorFlow is imported once; every trial is a fork of a process that has not run any operation yet.
"""

import ctypes
import json
import os
import random
import shutil
import signal
import sys
import time
import types

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pyarrow as pa
import tensorflow as tf

from embedding_core.checkpoint import BundleReader, Tables, retrieve, verify
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import Adagrad, Adam
from embedding_core.storage import remove_folder, remove_leftovers
from embedding_core.tasks import Task
from embedding_core.training.checkpoints import RunState
from embedding_core.vocabulary import Vocabulary

COUNT, KILL, FULL = 1, 2, 3  # modes of interpose.c
KEPT = 2
BEFORE = 5  # steps saved before the fault; the step after them is also saved as the best one
LIBC = ctypes.CDLL(None)


def arm(mode: int, n: int = 0) -> None:
    LIBC.interpose_arm(mode, n)


def disarm() -> list[str]:
    LIBC.interpose_disarm.restype = ctypes.c_char_p
    return LIBC.interpose_disarm().decode().splitlines()


class Job:
    """A training process: it starts, restores the newest state, checks it, and saves later ones.

    Row r of every table holds s + r at step s, so that the states of all steps differ.
    """

    def __init__(self, folder: str, rows: int) -> None:
        tokens = pa.array([b"%d" % row for row in range(rows - 1)], pa.large_binary())
        counts = np.ones(rows - 1, np.int64)
        self.vocabulary = Vocabulary(name="item", tokens=tokens, counts=counts, total_count=rows - 1, distinct=rows - 1)
        tables = (
            TableConfig(name="item", vocabulary_size=rows, dim=8, optimizer=Adam(), vocabulary="item", oov_rows=1),
            TableConfig(name="raw", vocabulary_size=7, dim=3, optimizer=Adagrad()),
        )
        features = tuple(FeatureConfig(name=table.name, table=table.name) for table in tables)
        self.config = EmbeddingConfig(tables=tables, features=features)
        engine = HostEngine(self.config)
        self.variables = engine.table_variables
        self.step = tf.Variable(0, dtype=tf.int64)
        model, optimizer = tf.Module(), tf.Module()
        self.run_folder = os.path.join(folder, "run")
        tables = Tables(self.variables, engine.tables)
        parts = {"tables": tables, "model": model, "optimizer": optimizer, "table_optimizers": {}}
        trained = types.SimpleNamespace(**parts, step=self.step, tasks=(Task(),))
        self.state = RunState(trained, self.run_folder)
        self.artifacts = os.path.join(folder, "artifacts")
        remove_leftovers(self.artifacts)

    def expected(self, step: int) -> dict[str, np.ndarray]:
        shapes = {key: tuple(variable.shape) for key, variable in self.variables.items()}
        return {key: np.full(shape, step, np.float32) + np.arange(shape[0])[:, None] for key, shape in shapes.items()}

    def restore(self) -> int:
        """Restore the newest state, and check it and all artifacts; return its step, 0 for a cold start.

        Raises:
          AssertionError: the restored state, its best state or an artifact is not one that was saved.
          CheckpointError: no state can be restored, or an artifact is incomplete or damaged.
        """
        found = self.state.resume()
        step = int(self.step.numpy())
        assert step == (0 if found is None else found.step)
        if found is not None:
            for key, rows in self.expected(step).items():
                np.testing.assert_array_equal(self.variables[key].numpy(), rows)
            assert int(self.state.best_step.numpy()) == step - step % 3
            self.state.restore_best()
            assert int(self.step.numpy()) == (step - step % 3 or step)
            self.step.assign(step)
        for artifact in os.listdir(self.artifacts) if os.path.isdir(self.artifacts) else []:
            self.check_artifact(os.path.join(self.artifacts, artifact))
        return step

    def check_artifact(self, folder: str) -> None:
        manifest = verify(folder)
        reader = BundleReader(os.path.join(folder, "tables"))
        for key, expected in self.expected(manifest.step).items():
            np.testing.assert_array_equal(np.concatenate([rows for _, rows in reader.slices(key)]), expected)

    def orphan_bytes(self) -> int:
        """Count the bytes of files that belong to no kept checkpoint."""
        steps = sorted(int(name[5:]) for name in os.listdir(self.run_folder) if name.startswith("step-"))[-KEPT:]
        good = [f"step-{step}" for step in steps] + [f"best/step-{step - step % 3}" for step in steps]
        good = [os.path.join(self.run_folder, name) for name in good]
        total = 0
        for root in (self.run_folder, self.artifacts):
            for parent, _, names in os.walk(root):
                mine = root == self.artifacts and "/." not in parent[len(root) :]
                if not mine and not any(parent == path for path in good):
                    total += sum(os.path.getsize(os.path.join(parent, name)) for name in names)
        return total

    def advance(self, step: int) -> None:
        """Set the state to that of a later step."""
        self.step.assign(step)
        for key, rows in self.expected(step).items():
            self.variables[key].assign(rows)

    def save(self) -> None:
        """Save the state, at every third step also as the best one."""
        if self.step.numpy() % 3 == 0:
            self.state.best_step.assign(self.step)
            self.state.save_best()
        self.state.save("{}")

    def retrieve(self) -> None:
        """Publish the newest state as an embedding checkpoint, as the pipeline does."""
        step = int(self.step.numpy())
        prefix = os.path.join(self.run_folder, f"step-{step}", f"ckpt-{step}")
        destination = os.path.join(self.artifacts, str(step))
        retrieve(prefix, self.config, destination, vocabularies={"item": self.vocabulary}, slice_bytes=1 << 20)


def forked(task) -> tuple[int, list[list]]:
    """Run `task(tell)` in a fork; return its exit status and the messages that it sent with `tell`."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        status = 1
        try:
            task(lambda *words: os.write(writer, (json.dumps(words) + "\n").encode()))
            status = 0
        except BaseException as error:
            os.write(writer, (json.dumps(["failed", f"{type(error).__name__}: {error}"]) + "\n").encode())
        os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = [json.loads(line) for line in lines]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), told


def _bytes_of_dead_writers(folder: str) -> int:
    files = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names if ".tmp-" in parent]
    return sum(os.path.getsize(path) for path in files)


class Ledger:
    """Sums up the outcomes of a campaign's trials."""

    def __init__(self, campaign: str, seed: int) -> None:
        self.figures = {"campaign": campaign, "seed": seed, "trials": 0, "killed": 0, "lost": 0, "failed_restarts": 0}
        self.figures |= {"swept_bytes": 0, "orphan_bytes": 0, "errors": []}
        self.acknowledged = 0

    def add(self, status: int, told: list[list], at_least: int = 0) -> None:
        said = {words[0]: words[1] for words in told}
        self.figures["trials"] += 1
        self.figures["killed"] += status == -signal.SIGKILL
        if "failed" in said or "restored" not in said:
            self.figures["failed_restarts"] += 1
            self.figures["errors"].append(said.get("failed", f"exit status {status}"))
            return
        self.figures["lost"] += said["restored"] < self.acknowledged
        self.figures["swept_bytes"] += said["left"]
        self.figures["orphan_bytes"] += said["orphans"]
        self.acknowledged = max([at_least or said["restored"], *(words[1] for words in told if words[0] == "saved")])


def start(folder: str, rows: int, tell) -> Job:
    tell("left", _bytes_of_dead_writers(folder))
    job = Job(folder, rows)
    tell("restored", job.restore())
    tell("orphans", job.orphan_bytes())
    job.advance(int(job.step.numpy()) + 1)
    return job


def _template(folder: str) -> list[str]:
    """Make a run that has saved a few states; return the calls that its next save and retrieval make."""

    def prepare(tell):
        job = start(os.path.join(folder, "template"), 200, tell)
        for step in range(1, BEFORE + 1):
            job.advance(step)
            job.save()
        job.retrieve()

    def count(tell):
        job = start(os.path.join(folder, "count"), 200, tell)
        arm(COUNT)
        job.save()
        job.retrieve()
        tell("calls", disarm())

    assert forked(prepare)[0] == 0
    shutil.copytree(os.path.join(folder, "template"), os.path.join(folder, "count"))
    return dict(forked(count)[1])["calls"]


def _at_points(ledger: Ledger, folder: str, mode: int, points: list[int]) -> list[int]:
    """Save the same state with a fault at each point in turn; each trial first restarts from the previous one's files.

    Returns:
      The points at which save and retrieval finished in spite of the fault.
    """
    unnoticed = []
    ledger.acknowledged = BEFORE
    before = os.path.join(folder, "template")
    for point in [*points, 0]:
        place = os.path.join(folder, "trial")
        shutil.copytree(os.path.join(folder, "template"), place, dirs_exist_ok=False)

        def live(tell, before=before, place=place, point=point):
            start(before, 200, tell)
            job = Job(place, 200)
            job.restore()
            job.advance(BEFORE + 1)
            arm(mode if point else COUNT, point)
            try:
                job.save()
                tell("saved", BEFORE + 1)
                job.retrieve()
            except CheckpointError as error:
                disarm()
                tell("raised", str(error))
            else:
                disarm()
                tell("finished", point)

        status, told = forked(live)
        ledger.add(status, told, at_least=BEFORE)
        unnoticed += [words[1] for words in told if words[0] == "finished" and point]
        before = os.path.join(folder, "after")
        shutil.rmtree(before, ignore_errors=True)
        os.rename(place, before)
    return unnoticed


def kill_at_every_call(trials: int, seed: int, folder: str) -> dict:
    """Kill a save and retrieval at each call in turn; if there are fewer trials, at a sample of each kind of call."""
    calls = _template(folder)
    kinds = sorted({line.split()[0] for line in calls})
    points = list(range(1, len(calls) + 1)) if trials >= len(calls) else _spread(calls, trials, seed)
    ledger = Ledger("kill at every call of a save", seed)
    unnoticed = _at_points(ledger, folder, KILL, points)
    return {**ledger.figures, "calls": len(calls), "kinds": kinds, "unnoticed": unnoticed}


def _spread(calls: list[str], trials: int, seed: int) -> list[int]:
    """Sample equally many calls of every kind; if a rare kind has too few, sample more of the frequent kinds."""
    random_ = random.Random(seed)
    by_kind: dict[str, list[int]] = {}
    for number, line in enumerate(calls, start=1):
        by_kind.setdefault(line.split()[0], []).append(number)
    chosen: list[int] = []
    for left, numbers in enumerate(sorted(by_kind.values(), key=len)):
        share = (trials - len(chosen)) // (len(by_kind) - left)
        chosen += random_.sample(numbers, min(share, len(numbers)))
    return sorted(chosen)


def kill_at_random(trials: int, seed: int, folder: str) -> dict:
    """Kill, at random moments, a process that saves all the time; if no kill hits a save, go on to 200 trials."""
    random_ = random.Random(seed)
    ledger = Ledger("kill at a random moment", seed)
    while (done := ledger.figures["trials"]) < trials or (not ledger.figures["swept_bytes"] and done < 200):
        delay = random_.uniform(0, 0.3)

        def live(tell, delay=delay):
            job = start(folder, 40_000, tell)
            killer = os.fork()
            if killer == 0:
                time.sleep(delay)
                os.kill(os.getppid(), signal.SIGKILL)
                os._exit(0)
            for _ in range(10_000):
                job.save()
                tell("saved", int(job.step.numpy()))
                if job.step.numpy() % 3 == 0:
                    job.retrieve()
                    remove_folder(os.path.join(job.artifacts, str(int(job.step.numpy()))))  # the kill may come here
                job.advance(int(job.step.numpy()) + 1)

        ledger.add(*forked(live))
    _, told = forked(lambda tell: start(folder, 40_000, tell))
    ledger.add(0, told)
    return ledger.figures


def full_disk(trials: int, seed: int, folder: str) -> dict:
    """Fill the disk from the n-th write on: the save or the retrieval fails, and the last state can be restored."""
    writes = sum("write" in line.split()[0] for line in _template(folder))
    points = sorted(random.Random(seed).sample(range(1, writes + 1), min(trials, writes)))
    ledger = Ledger("disk full at every write of a save", seed)
    unnoticed = _at_points(ledger, folder, FULL, points)
    return {**ledger.figures, "writes": writes, "unnoticed": unnoticed}


def main(campaign: str, trials: str, seed: str, folder: str) -> None:
    campaigns = {"calls": kill_at_every_call, "random": kill_at_random, "full": full_disk}
    sys.stdout.write(json.dumps(campaigns[campaign](int(trials), int(seed), folder)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

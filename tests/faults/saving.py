"""Kills a process that saves, at calls that change files, and fills its disk, from a write on.

``python -m tests.faults.saving <trials> <trials of a full disk> <seed> <folder>`` with `interpose.c` preloaded prints
one line of JSON. TensorFlow is imported once; every trial is a fork of a process that has not run any operation yet.
"""

import json
import os
import shutil
import signal
import sys
import types

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from embedding_core.checkpoint import BundleReader, Tables, retrieve, verify
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import Adagrad, Adam
from embedding_core.storage import remove_leftovers
from embedding_core.tasks import Task
from embedding_core.training.finished_run import RunState
from tests.support.interposed import COUNT, FULL, KILL, arm, counted, disarm, forked, points_of
from tests.support.vocabularies import vocabulary_of

KEPT = 2
BEFORE = 5  # steps saved before the fault; the step after them is also saved as the best one


class Job:
    """A training process: it starts, restores the newest state, checks it, and saves later ones.

    Row r of every table holds s + r at step s, so that the states of all steps differ.
    """

    def __init__(self, folder: str, rows: int = 200) -> None:
        self.vocabulary = vocabulary_of([b"%d" % row for row in range(rows - 1)], "item")
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
        counted = tables.nonfinite_rows
        trained = types.SimpleNamespace(**parts, step=self.step, tasks=(Task(),), nonfinite_rows=counted)
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


def _bytes_of_dead_writers(folder: str) -> int:
    files = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names if ".tmp-" in parent]
    return sum(os.path.getsize(path) for path in files)


def start(folder: str, tell) -> Job:
    tell("left", _bytes_of_dead_writers(folder))
    job = Job(folder)
    tell("restored", job.restore())
    tell("orphans", job.orphan_bytes())
    job.advance(int(job.step.numpy()) + 1)
    return job


def template(folder: str) -> list[str]:
    """Make a run that has saved a few states; return the kinds of calls that its next save and retrieval make."""

    def prepare(tell):
        job = start(os.path.join(folder, "template"), tell)
        for step in range(1, BEFORE + 1):
            job.advance(step)
            job.save()
        job.retrieve()

    def act(job):
        job.save()
        job.retrieve()

    assert forked(prepare)[0] == 0
    shutil.copytree(os.path.join(folder, "template"), os.path.join(folder, "count"))
    return counted(act, lambda: start(os.path.join(folder, "count"), lambda *_: None))


def at_points(folder: str, mode: int, points: list[int]) -> dict:
    """Save the same state with a fault at each point in turn; each trial first restarts from the previous one's files.

    Returns:
      What was lost or left over, and the points at which save and retrieval finished in spite of the fault.
    """
    figures = {"trials": 0, "killed": 0, "lost": 0, "swept_bytes": 0, "orphan_bytes": 0, "errors": [], "unnoticed": []}
    acknowledged, before = BEFORE, os.path.join(folder, "template")
    for point in [*points, 0]:
        place = os.path.join(folder, "trial")
        shutil.copytree(os.path.join(folder, "template"), place)

        def live(tell, before=before, place=place, point=point):
            start(before, tell)
            job = Job(place)
            job.restore()
            job.advance(BEFORE + 1)
            arm(mode if point else COUNT, point)
            try:
                job.save()
                tell("saved", BEFORE + 1)
                job.retrieve()
            except CheckpointError:
                disarm()
            else:
                disarm()
                tell("finished", point)

        status, told = forked(live)
        figures["trials"] += 1
        figures["killed"] += status == -signal.SIGKILL
        figures["lost"] += told.get("restored", 0) < acknowledged
        figures["swept_bytes"] += told.get("left", 0)
        figures["orphan_bytes"] += told.get("orphans", 0)
        figures["errors"] += [told["failed"]] if "failed" in told else []
        figures["unnoticed"] += [point] if point and "finished" in told else []
        acknowledged, before = told.get("saved", BEFORE), os.path.join(folder, "after")
        shutil.rmtree(before, ignore_errors=True)
        os.rename(place, before)
    return figures


def main(trials: str, full: str, seed: str, folder: str) -> None:
    """Kill at a sample of the calls, fill the disk at a sample of the writes, and print the figures."""
    kinds = template(folder)
    writes = ["write"] * sum("write" in kind for kind in kinds)
    figures = {"calls": len(kinds), "writes": len(writes), "kinds": sorted(set(kinds))}
    figures["killed"] = at_points(folder, KILL, points_of(kinds, int(trials), int(seed)))
    figures["full"] = at_points(folder, FULL, points_of(writes, int(full), int(seed)))
    sys.stdout.write(json.dumps({"campaign": "saves killed, and on a full disk", **figures}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Measures the peak memory of the checkpoint operations: ``python -m benchmarks.checkpoint_memory <folder>``.

Each step runs in a new process. The figure is the peak resident set (VmHWM) during the step minus the resident set
before it, in bytes and as a share of the table. "save" has TensorFlow write a training checkpoint; "plain_restore"
restores it with `tf.train.Checkpoint`, for comparison with "resume".
"""

import argparse
import json
import os
import subprocess
import sys
import time

DIM = 64
STEPS = ("save", "retrieve", "plain_restore", "load", "remap", "resume")


def measured(step: str, folder: str, rows: int) -> dict[str, object]:
    """Run one step in this process, and return its memory and time."""
    import numpy as np
    import pyarrow as pa
    import tensorflow as tf

    from embedding_core.checkpoint import Tables as RunTables
    from embedding_core.checkpoint import TrainingState, load_checkpoint_into, remap, retrieve
    from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
    from embedding_core.engines.tables import Tables
    from embedding_core.optimizers import SGD
    from embedding_core.vocabulary import Vocabulary

    def vocabulary(first: int) -> Vocabulary:
        """Make a vocabulary of tokens `first`, `first` + 1, ...: a larger `first` drops, moves and adds tokens."""
        tokens = pa.array(np.arange(first, first + rows - 1)).cast(pa.string()).cast(pa.large_binary())
        counts = np.ones(rows - 1, np.int64)
        return Vocabulary(name="item", tokens=tokens, counts=counts, total_count=rows - 1, distinct=rows - 1)

    def filled_table() -> tf.Variable:
        """Make a table whose values are the row numbers, written a million rows at a time."""
        table = tf.Variable(tf.zeros([rows, DIM]))
        for start in range(0, rows, 1 << 20):
            numbers = tf.range(start, min(start + (1 << 20), rows))
            values = tf.tile(tf.cast(numbers, tf.float32)[:, None], [1, DIM])
            table.scatter_update(tf.IndexedSlices(values, numbers))
        return table

    optimizer = SGD()
    table = TableConfig(name="item", vocabulary_size=rows, dim=DIM, optimizer=optimizer, vocabulary="item", oov_rows=1)
    config = EmbeddingConfig(tables=(table,), features=(FeatureConfig(name="f", table="item"),))
    training, embedding, remapped = (os.path.join(folder, name) for name in ("ckpt", "embedding", "remapped"))

    holder = Tables()
    step_variable = tf.Variable(1, dtype=tf.int64)
    words = vocabulary(0) if step in {"retrieve", "load", "remap"} else None
    new_words = vocabulary(rows // 10) if step == "remap" else None
    if step in {"save", "plain_restore", "load", "resume"}:
        holder.item = filled_table()
    variables = {"item": holder.item} if hasattr(holder, "item") else {}
    state = TrainingState(RunTables(variables, holder), {"step": step_variable})
    whole = tf.train.Checkpoint(embedding=holder, step=step_variable)
    works = {
        "save": lambda: state.write(training),
        "retrieve": lambda: retrieve(training, config, embedding, vocabularies={"item": words}),
        "plain_restore": lambda: whole.restore(training).assert_consumed(),
        "load": lambda: load_checkpoint_into(
            embedding, {"item": holder.item}, config, vocabulary_digests={"item": words.digest}
        ),
        "remap": lambda: remap(embedding, config, {"item": new_words}, remapped),
        "resume": lambda: state.restore(training),
    }
    begun, before = time.monotonic(), _status("VmRSS")
    _reset_peak()
    works[step]()
    extra, size = _status("VmHWM") - before, 4 * rows * DIM
    seconds = round(time.monotonic() - begun, 1)
    return {
        "step": step,
        "table_bytes": size,
        "extra_bytes": extra,
        "share": round(extra / size, 3),
        "seconds": seconds,
    }


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def run(folder: str, rows: int, steps: tuple[str, ...] = STEPS) -> list[dict[str, object]]:
    """Run each step in a new process."""
    found = []
    for step in steps:
        command = [sys.executable, "-m", "benchmarks.checkpoint_memory", folder, "--rows", str(rows), "--step", step]
        environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def main() -> None:
    """Measure, and print a line of JSON per step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=2**31 // (4 * DIM))
    parser.add_argument("--step", choices=STEPS)
    given = parser.parse_args()
    os.makedirs(given.folder, exist_ok=True)
    found = [measured(given.step, given.folder, given.rows)] if given.step else run(given.folder, given.rows)
    for line in found:
        print(json.dumps(line))


if __name__ == "__main__":
    main()

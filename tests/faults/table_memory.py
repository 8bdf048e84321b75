"""Measures the peak memory of saving, loading, remapping and exporting a table: `run` measures each step.

Each step runs in a new process. The figure is the peak resident set (VmHWM) during the step minus the resident set
before it, in bytes and as a share of the float32 table. "save" has TensorFlow write a training checkpoint;
"plain_restore" restores it with `tf.train.Checkpoint`, for comparison with "resume". "export_live" exports a variable;
the other exports write a table of a checkpoint, with rows of their type.
"""

import json
import os
import subprocess
import sys
import time

DIM = 64
EXPORTS = {"export": "float32", "export_float16": "float16", "export_int8": "int8"}
STEPS = ("save", "retrieve", "plain_restore", "load", "remap", "resume", "export_live", *EXPORTS)


def _filled_table(rows):
    """Make a table whose values are the row numbers, written a million rows at a time."""
    import tensorflow as tf

    table = tf.Variable(tf.zeros([rows, DIM]))
    for start in range(0, rows, 1 << 20):
        numbers = tf.range(start, min(start + (1 << 20), rows))
        values = tf.tile(tf.cast(numbers, tf.float32)[:, None], [1, DIM])
        table.scatter_update(tf.IndexedSlices(values, numbers))
    return table


def _checkpoint_work(step, folder, rows):
    """Return the work of a step on checkpoints, with all that it needs in memory."""
    import numpy as np
    import pyarrow as pa
    import tensorflow as tf

    from embedding_core.checkpoint import Tables as RunTables
    from embedding_core.checkpoint import TrainingState, load_checkpoint_into, remap, retrieve
    from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
    from embedding_core.engines.tables import Tables
    from embedding_core.optimizers import SGD
    from embedding_core.vocabulary import Vocabulary

    def vocabulary(first):
        """Make a vocabulary of tokens `first`, `first` + 1, ...: a larger `first` drops, moves and adds tokens."""
        tokens = pa.array(np.arange(first, first + rows - 1)).cast(pa.string()).cast(pa.large_binary())
        counts = np.ones(rows - 1, np.int64)
        return Vocabulary(name="item", tokens=tokens, counts=counts, total_count=rows - 1, distinct=rows - 1)

    table = TableConfig(name="item", vocabulary_size=rows, dim=DIM, optimizer=SGD(), vocabulary="item", oov_rows=1)
    config = EmbeddingConfig(tables=(table,), features=(FeatureConfig(name="f", table="item"),))
    training, embedding, remapped = (os.path.join(folder, name) for name in ("ckpt", "embedding", "remapped"))
    holder = Tables()
    step_variable = tf.Variable(1, dtype=tf.int64)
    words = vocabulary(0) if step in {"retrieve", "load", "remap"} else None
    new_words = vocabulary(rows // 10) if step == "remap" else None
    if step in {"save", "plain_restore", "load", "resume"}:
        holder.item = _filled_table(rows)
    variables = {"item": holder.item} if hasattr(holder, "item") else {}
    state = TrainingState(RunTables(variables, holder), {"step": step_variable})
    whole = tf.train.Checkpoint(embedding=holder, step=step_variable)
    return {
        "save": lambda: state.write(training),
        "retrieve": lambda: retrieve(training, config, embedding, vocabularies={"item": words}),
        "plain_restore": lambda: whole.restore(training).assert_consumed(),
        "load": lambda: load_checkpoint_into(
            embedding, {"item": holder.item}, config, vocabulary_digests={"item": words.digest}
        ),
        "remap": lambda: remap(embedding, config, {"item": new_words}, remapped),
        "resume": lambda: state.restore(training),
    }[step]


def _export_work(step, folder, rows):
    """Return the work of an export of a table of raw ids."""
    import numpy as np
    import tf_keras

    from embedding_core.checkpoint import write_tables
    from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
    from embedding_core.model_inputs import model_inputs
    from embedding_core.serving import export_embeddings, export_model

    config = EmbeddingConfig(
        tables=(TableConfig(name="item", vocabulary_size=rows, dim=DIM),),
        features=(FeatureConfig(name="id", table="item", column=ColumnConfig(name="id", dtype="int64")),),
    )
    source, model_folder = os.path.join(folder, "exported_table"), os.path.join(folder, step)
    if step == "export_live":
        embeddings, _ = model_inputs(config, ())
        model = tf_keras.Model([embeddings, {}], tf_keras.layers.Dense(1)(embeddings["id"]))
        tables = {"item": _filled_table(rows)}
        return lambda: export_model(model_folder, config=config, tables=tables, vocabularies={}, model=model)

    def slices(key):
        for start in range(0, rows, 1 << 16):
            numbers = (np.arange(start, min(start + (1 << 16), rows)) % 1000).astype(np.float32)
            yield start, np.repeat(numbers[:, np.newaxis], DIM, axis=1)

    if not os.path.exists(source):
        write_tables(source, config, slices, step=1, vocabularies={})
    return lambda: export_embeddings(source, model_folder, rows_dtype=EXPORTS[step])


def measured(step, folder, rows):
    """Run one step in this process, and return its memory and time."""
    work = (_export_work if step.startswith("export") else _checkpoint_work)(step, folder, rows)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    begun, before = time.monotonic(), _status("VmRSS")
    work()
    extra, size = _status("VmHWM") - before, 4 * rows * DIM
    seconds = round(time.monotonic() - begun, 1)
    return {"table_bytes": size, "extra_bytes": extra, "share": round(extra / size, 3), "seconds": seconds}


def _status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def run(folder, rows):
    """Run each step in a new process; return its figures by name."""
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    figures = {}
    for step in STEPS:
        command = [sys.executable, "-m", __name__, step, folder, str(rows)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        figures[step] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured(sys.argv[1], sys.argv[2], int(sys.argv[3]))))

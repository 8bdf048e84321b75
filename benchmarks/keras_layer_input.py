"""Measures whether a training step waits for its input: reading, parsing and token lookup against the step itself.

    python -m benchmarks.keras_layer_input FOLDER [--rows 200000] [--rounds 5]

The data has 26 string features with one value per row and 10 to 1,000,000 distinct tokens (bounded Zipf), in gzipped
TFRecord. The model has tables of dim 16, Adagrad and an MLP of 416-64-1; the batch size is 4096. The input pipeline is
the trainer's. The stages take turns. Figures per row are CPU microseconds of all threads and wall microseconds: median
(minimum-maximum).
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
import tf_keras

from benchmarks.zipf_examples import ZipfData, _token, write_examples
from embedding_core import Adagrad, ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.layer import TPUEmbedding
from embedding_core.tasks import POSITIVE
from embedding_core.training.row_stream import batches_once
from embedding_core.training.training_inputs import Inputs, RowParser

BATCH, DIM = 4096, 16


def config_of(data):
    """Return a configuration with one feature and one table per column."""
    sizes = [data.cardinality(place) + 1 for place in range(data.features)]
    return EmbeddingConfig(
        tables=tuple(
            TableConfig(name=name, vocabulary_size=size, dim=DIM, vocabulary=name, oov_rows=1)
            for name, size in zip(data.names, sizes, strict=True)
        ),
        features=tuple(FeatureConfig(name=name, table=name, column=ColumnConfig(name=name)) for name in data.names),
    )


def vocabularies_of(data, folder):
    """Write a vocabulary of all tokens for each column, and return the paths by column."""
    paths = {name: str(Path(folder, name)) for name in data.names}
    for place, path in enumerate(paths.values()):
        tokens = (_token(place, value) for value in range(data.cardinality(place)))
        Path(path).write_bytes(b"\n".join(tokens) + b"\n")
    return paths


def step_of(config):
    """Return a step like the trainer's: the layer in engine mode, and a dense part with a separate optimizer."""
    layer = TPUEmbedding(config, Adagrad(learning_rate=0.01), table_update="engine")
    dense = tf_keras.Sequential([tf_keras.layers.Dense(64, "relu"), tf_keras.layers.Dense(1)])
    dense.build([None, DIM * len(config.features)])
    optimizer = tf_keras.optimizers.Adagrad(0.01)
    optimizer.build(dense.trainable_variables)

    @tf.function(reduce_retracing=True)
    def step(batch):
        with tf.GradientTape() as tape:
            logit = dense(tf.concat(list(layer(batch["ids"]).values()), 1))
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(batch["label"], logit))
        own, rest = tape.gradient(loss, (layer.trainable_variables, dense.trainable_variables))
        optimizer.apply_gradients(zip(rest, dense.trainable_variables, strict=True))
        return own

    return step


def stages_of(data, files, folder):
    """Return the stages to time, by name: functions without arguments that process all rows once."""
    config = config_of(data)
    parser = RowParser(Inputs(config=config, vocabularies=vocabularies_of(data, folder), tasks=(POSITIVE,)))
    spec = {name: tf.io.FixedLenFeature([], tf.string) for name in data.names}
    step, kept = step_of(config), []

    def read():
        return batches_once(files, BATCH).map(lambda _, rows: rows)

    def run(dataset):
        return lambda: [None for _ in dataset]

    def train():
        for batch in kept:
            step(batch)

    kept += list(read().map(parser))
    parsed = read().map(parser, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(4)
    return {
        "read and unzip": run(read()),
        "... and tf.io.parse_example": run(read().map(lambda rows: tf.io.parse_example(rows, spec))),
        "... and token lookup: the input": run(read().map(parser)),
        "step on batches that are there": train,
        "input and step": lambda: [None for batch in parsed if step(batch)],
    }


def main():
    """Measure the stages, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    data = ZipfData(rows=given.rows)
    files = [str(path) for path in write_examples(data, given.folder / f"zipf-{given.rows}")]
    with tempfile.TemporaryDirectory() as folder:
        stages = stages_of(data, files, folder)
        for stage in stages.values():
            stage()
        cpu, wall = {name: [] for name in stages}, {name: [] for name in stages}
        for _ in range(given.rounds):
            for name, stage in stages.items():
                start = time.process_time(), time.perf_counter()
                stage()
                cpu[name].append(1e6 * (time.process_time() - start[0]) / given.rows)
                wall[name].append(1e6 * (time.perf_counter() - start[1]) / given.rows)
    print("| stage | CPU us a row | wall us a row | rows a CPU second |", "|---|---|---|---|", sep="\n")
    for name in stages:
        cells = [f"{statistics.median(own):.1f} ({min(own):.1f}-{max(own):.1f})" for own in (cpu[name], wall[name])]
        print(f"| {name} | {' | '.join(cells)} | {1e6 / statistics.median(cpu[name]):,.0f} |")


if __name__ == "__main__":
    main()

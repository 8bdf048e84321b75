"""Runs as the chief of a cluster, in a process of its own: TensorFlow connects a process to one cluster only.

`chief.py exact OUT` compares the tables on servers with the host engine; `chief.py train OUT --folder F --settings S`
trains the small job of `tests.support.training_jobs`; `both` does both. The results are JSON.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import numpy as np
import tensorflow as tf
from jobs import large_job

from embedding_core.checkpoint.bundle import BundleReader
from embedding_core.checkpoint.stored_keys import training_key
from embedding_core.config import EmbeddingConfig, FeatureConfig, InitializerConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import EmbeddingError
from embedding_core.layer import TPUEmbedding
from embedding_core.optimizers import FTRL, SGD, Adagrad, AdagradMomentum, Adam
from embedding_core.parameter_server.strategy import parameter_server_strategy
from embedding_core.training import train
from tests.support.training_jobs import job_in

STEPS, BATCH, WIDTH = 4, 32, 6
ROWS = 700  # two servers have 350 rows each; the table of 20 rows is whole
OPTIMIZERS = {
    "sgd": SGD(learning_rate=0.3),
    "sgd_each": SGD(learning_rate=0.3, use_gradient_accumulation=False),
    "adagrad": Adagrad(learning_rate=0.3, clipvalue=0.5),
    "momentum": AdagradMomentum(learning_rate=0.1, momentum=0.9, weight_decay_factor=0.01),
    "adam": Adam(learning_rate=0.1, clip_weight_max=0.9),
    "adam_all": Adam(learning_rate=0.1, lazy_adam=False),
    "ftrl": FTRL(learning_rate=0.1, l1_regularization_strength=0.01),
    "small": Adagrad(learning_rate=0.3),
}
COMBINERS = ("sum", "mean", "sqrtn")


def _config():
    tables = [
        TableConfig(
            name=name,
            vocabulary_size=20 if name == "small" else ROWS,
            dim=4,
            optimizer=optimizer,
            combiner=COMBINERS[at % 3],
            initializer=InitializerConfig(name="uniform", scale=1.0),
        )
        for at, (name, optimizer) in enumerate(OPTIMIZERS.items())
    ]
    features = [
        FeatureConfig(name=f"{table.name}_{name}", table=table.name) for table in tables for name in ("one", "two")
    ]
    return EmbeddingConfig(tables=tuple(tables), features=tuple(features))


def _batch(config, step):
    random = np.random.default_rng(step)
    ids, gradients = {}, {}
    for feature in config.features:
        rows = config.table(feature.table).vocabulary_size
        lengths = random.integers(0, WIDTH, BATCH)
        values = np.minimum(random.zipf(1.3, lengths.sum()) - 1, rows - 1)
        values[random.random(len(values)) < 0.5] = rows - 1  # both servers have a hot row
        ids[feature.name] = tf.RaggedTensor.from_row_lengths(values.astype(np.int64), lengths)
        gradients[feature.name] = tf.constant(random.normal(size=(BATCH, 4)), tf.float32)
    return ids, gradients


def _layer_step(layer, strategy):
    def replica(ids, gradients):
        with tf.GradientTape() as tape:
            activations = layer(ids)
            loss = tf.add_n([tf.reduce_sum(activations[name] * gradients[name]) for name in activations])
        tape.gradient(loss, layer.trainable_variables)
        return activations

    return tf.function(lambda ids, gradients: strategy.run(replica, args=(ids, gradients)))


def _difference(values, wanted):
    """Return the largest difference, relative to the largest value; 0 only if all bits are equal."""
    return float(np.abs(values - wanted).max() / np.abs(wanted).max())


def exact():
    """Take steps one at a time on the cluster and in the host engine; return the differences and the placements."""
    config, strategy = _config(), parameter_server_strategy()
    with tf.device("/job:chief/task:0/device:CPU:0"):
        host = HostEngine(config, seed=5)
    with strategy.scope():
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        layer = TPUEmbedding(config, None, table_update="engine", seed=5)
        layer.build(None)
    step, differing = _layer_step(layer, strategy), {}
    for number in range(STEPS):
        ids, gradients = _batch(config, number)
        activations = coordinator.schedule(step, args=(ids, gradients))
        coordinator.join()
        fetched = activations.fetch()
        for name, values in host.lookup(ids).items():
            differing[name] = max(differing.get(name, 0.0), _difference(fetched[name], values.numpy()))
        host.apply_gradients(ids, gradients)
    for key, variable in host.table_variables.items():
        rows = np.concatenate([block.numpy() for block in layer.table_blocks[key]])
        differing[key] = _difference(rows, variable.numpy())
    devices = {key: [block.device for block in blocks] for key, blocks in layer.table_blocks.items()}
    return {"differing": differing, "devices": devices, "bad_id": _error_of_bad_id(layer, coordinator, step)}


def _error_of_bad_id(layer, coordinator, step):
    ids, gradients = _batch(_config(), 0)
    ids["adam_one"] = ids["adam_one"].with_flat_values(ids["adam_one"].flat_values + ROWS)
    before = {key: np.concatenate([block.numpy() for block in blocks]) for key, blocks in layer.table_blocks.items()}
    try:
        coordinator.schedule(step, args=(ids, gradients))
        coordinator.join()
    except tf.errors.InvalidArgumentError as error:
        after = {key: np.concatenate([block.numpy() for block in blocks]) for key, blocks in layer.table_blocks.items()}
        changed = [key for key, rows in before.items() if not np.array_equal(rows, after[key])]
        return {"message": error.message, "changed": changed}
    return None


def trained(folder, settings):
    """Train the small job, and return its figures."""
    folder = Path(folder)
    name, large = settings.pop("run", "run"), settings.pop("large", False)
    job = (large_job if large else job_in)(folder, **settings)
    try:
        result = train(job, str(folder / name), resume_folder=str(folder / f"{name}-resume"))
    except EmbeddingError as error:
        return {"error": type(error).__name__, "message": str(error)}
    reader = BundleReader(result.checkpoint)
    saved = {key: np.concatenate([rows for _, rows in reader.slices(training_key(key))]) for key in result.tables}
    return {
        "facts": result.history.facts,
        "evals": result.history.evals,
        "train": result.history.train,
        "step": result.step,
        "same_as_saved": all(np.array_equal(rows, result.tables[key].numpy()) for key, rows in saved.items()),
    }


def main():
    """Run what the command line says, and leave without TensorFlow's shutdown, which waits for lost tasks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["exact", "train", "both"])
    parser.add_argument("out")
    parser.add_argument("--folder")
    parser.add_argument("--settings", default="{}")
    given = parser.parse_args()
    done = {}
    if given.mode != "train":
        done["exact"] = exact()
    if given.mode != "exact":
        done["train"] = trained(given.folder, json.loads(given.settings))
    Path(given.out).write_text(json.dumps(done))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

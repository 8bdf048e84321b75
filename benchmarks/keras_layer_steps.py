"""Measures one case of `benchmarks.keras_layer` in this process: makes ids and steps, and times them in turn."""

import gc
import subprocess

import numpy as np
import tensorflow as tf
import tf_keras

from benchmarks.measuring import memory_mb, spent, take_turns
from embedding_core.layer import TPUEmbedding

TABLES, BATCH, DISTINCT = 26, 4096, 4
tpu = tf.tpu.experimental.embedding


def sizes(total):
    """Return 26 table sizes, from a few rows to about a third of `total`, as click logs have them."""
    shares = np.geomspace(1e-5, 1.0, TABLES)
    return np.maximum(4, shares / shares.sum() * total).astype(int).tolist()


def write_ids(file, kind, rows):
    """Write DISTINCT batches of log-uniform ids for all variants: one id per example, or 1 to 9 (5 on average)."""
    generator = np.random.default_rng(0)
    most = 2 if kind == "onehot" else 10
    lengths = generator.integers(1, most, (DISTINCT, len(rows), BATCH))
    ids = [
        np.minimum(np.exp(generator.uniform(0, np.log(size), own.sum())).astype(np.int64), size - 1)
        for batch in lengths
        for own, size in zip(batch, rows, strict=True)
    ]
    np.savez(file, rows=rows, ids=np.concatenate(ids), lengths=lengths)


def batches(file, kind):
    """Yield the batches that `write_ids` wrote, as tensors by feature."""
    data = np.load(file)
    flat = iter(np.split(data["ids"], np.cumsum(data["lengths"].sum(2).ravel())[:-1]))
    for batch in data["lengths"]:
        own = [(tf.constant(next(flat)), lengths) for lengths in batch]
        yield {
            f"f{place}": ids if kind == "onehot" else tf.RaggedTensor.from_row_lengths(ids, lengths)
            for place, (ids, lengths) in enumerate(own)
        }


def layer_of(variant, name, rows, dim):
    """Return a layer of tables with the optimizer that it was given; that of tf_keras is the older, as TFRS requires.

    A variant is "tfrs", "keras-rs", a value of `table_update`, or "gradient", which is "keras" without the update; the
    last three with a 3 for the layer of Keras 3.
    """
    if variant.endswith("3") or variant == "keras-rs":
        import keras

        from embedding_core.layer.keras3 import TPUEmbedding as Layer

        kinds = keras.optimizers
    else:
        kinds, Layer = tf_keras.optimizers.legacy, TPUEmbedding  # noqa: N806
    optimizer = {"sgd": kinds.SGD, "adagrad": kinds.Adagrad, "adam": kinds.Adam}[name](0.01)
    if variant == "keras-rs":
        from keras_rs.layers import DistributedEmbedding, FeatureConfig, TableConfig

        tables = [TableConfig(f"t{place}", size, dim, "zeros", optimizer) for place, size in enumerate(rows)]
        named = {
            f"f{place}": FeatureConfig(f"f{place}", own, (BATCH, None), (BATCH, dim))
            for place, own in enumerate(tables)
        }
        return DistributedEmbedding(named), optimizer
    zeros = tf.zeros_initializer()
    config = {
        f"f{place}": tpu.FeatureConfig(tpu.TableConfig(size, dim, zeros, name=f"t{place}"))
        for place, size in enumerate(rows)
    }
    if variant == "tfrs":
        from tensorflow_recommenders.layers.embedding import TPUEmbedding as Theirs

        return Theirs(config, optimizer), optimizer
    return Layer(config, optimizer, table_update="engine" if variant.startswith("engine") else "keras"), optimizer


def step_of(variant, name, rows, dim):
    """Return a training step as a tf.function; the loss, a sum of means of the activations, has no dense part."""
    layer, optimizer = layer_of(variant, name, rows, dim)

    def step(ids):
        if variant == "keras-rs":  # it takes one id per example as [B, 1]
            ids = {key: value if isinstance(value, tf.RaggedTensor) else value[:, None] for key, value in ids.items()}
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_mean(values) for values in layer(ids).values()])
        variables = layer.trainable_variables
        gradients = tape.gradient(loss, variables)
        if variant.startswith("gradient"):
            return gradients
        if not variant.startswith("engine"):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return None

    return tf.function(step, reduce_retracing=True)


class Own:
    """A variant that runs in this process."""

    def __init__(self, variant, name, rows, dim, found):
        variant, _, other = variant.partition(" ")
        self._step = step_of(variant, other or name, rows, dim)
        # Keras' Adam, and all but SGD of Keras 3, update every row of every table: slow
        dense = {"tfrs": ("adam",), "keras": ("adam",), "keras3": ("adagrad", "adam"), "keras-rs": ("adagrad", "adam")}
        self._batches = found[:1] if (other or name) in dense.get(variant, ()) else found
        self.version = ""
        self.turn()

    def turn(self):
        """Take a step on each batch, and return the mean CPU milliseconds of a step."""
        return 1e3 * spent(lambda: [self._step(ids) for ids in self._batches]).cpu / len(self._batches)


class Peer:
    """A variant that runs in another Python, in a process that waits for its turn."""

    def __init__(self, command):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self._process.stdout.readline().strip()

    def turn(self):
        """Have the peer take its turn, and return its mean CPU milliseconds of a step."""
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


def measured(case, variants, file, rounds):
    """Return the CPU milliseconds of a step by variant, one figure per round, and the versions of the peers.

    The variants take turns in an order that changes with every round.

    Args:
      case: optimizer, dim and kind of ids ("onehot" or "ragged").
      variants: by name, the command of a peer, or None for a variant that runs in this process.
      file: file that `write_ids` wrote.
      rounds: number of rounds.
    """
    name, dim, kind = case
    rows, found = sizes_of(file), list(batches(file, kind))
    runs = {
        variant: Peer([*command, str(file), name, str(dim)]) if command else Own(variant, name, rows, dim, found)
        for variant, command in variants.items()
    }
    gc.disable()
    times = take_turns({variant: run.turn for variant, run in runs.items()}, rounds)
    return times, {variant: run.version for variant, run in runs.items() if run.version}


def sizes_of(file):
    """Return the number of rows of each table."""
    return np.load(file)["rows"].tolist()


def measure_case(case, variants, file, rounds):
    """Measure a case; return its figures by name."""
    times, versions = measured(case, variants, file, rounds)
    return {"times": times, "versions": versions}


def measure_memory(optimizer, dim, file):
    """Return by how much training in engine mode raises the peak memory, as a multiple of tables and slots."""
    found = list(batches(file, "onehot"))
    small = step_of("engine", optimizer, [4] * TABLES, dim)
    small({name: ids % 4 for name, ids in found[0].items()})  # allocates TensorFlow's own buffers, which do not count
    before = memory_mb("VmHWM")
    step = step_of("engine", optimizer, sizes_of(file), dim)
    for ids in found:
        step(ids)
    slots = {"sgd": 0, "adagrad": 1, "adam": 2}[optimizer]
    return (memory_mb("VmHWM") - before) * 2**20 / ((1 + slots) * sum(sizes_of(file)) * dim * 4)

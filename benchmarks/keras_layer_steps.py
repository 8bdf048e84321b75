"""One case of `benchmarks.keras_layer`, measured in this process: tables, ids, steps and their turns."""

import gc
import json
import resource
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras

from embedding_core.layer import TPUEmbedding

TABLES, BATCH, DISTINCT = 26, 4096, 4
PEERS = Path(__file__).with_name("peers")
tpu = tf.tpu.experimental.embedding


def sizes(total):
    """26 table sizes from a few rows to a third of all, in the manner of click logs."""
    shares = np.geomspace(1e-5, 1.0, TABLES)
    return np.maximum(4, shares / shares.sum() * total).astype(int).tolist()


def write_ids(file, kind, rows):
    """Log-uniform ids, one per example or 1 to 9 (5 on average), of DISTINCT batches; every variant reads them."""
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
    """The batches of `write_ids` as tensors by feature."""
    data = np.load(file)
    flat = iter(np.split(data["ids"], np.cumsum(data["lengths"].sum(2).ravel())[:-1]))
    for batch in data["lengths"]:
        own = [(tf.constant(next(flat)), lengths) for lengths in batch]
        yield {
            f"f{place}": ids if kind == "onehot" else tf.RaggedTensor.from_row_lengths(ids, lengths)
            for place, (ids, lengths) in enumerate(own)
        }


def keras_optimizer(name):
    """The older Keras optimizer, which TensorFlow Recommenders asks for."""
    kinds = tf_keras.optimizers.legacy
    return {"sgd": kinds.SGD, "adagrad": kinds.Adagrad, "adam": kinds.Adam}[name](0.01)


def step_of(variant, name, rows, dim):
    """A traced training step; the loss is the mean of the activations, so that only the embedding is measured."""
    optimizer = keras_optimizer(name)
    zeros = tf.zeros_initializer()
    config = {
        f"f{place}": tpu.FeatureConfig(tpu.TableConfig(size, dim, zeros, name=f"t{place}"))
        for place, size in enumerate(rows)
    }
    if variant == "tfrs":
        from tensorflow_recommenders.layers.embedding import TPUEmbedding as Theirs

        layer = Theirs(config, optimizer)
    else:
        layer = TPUEmbedding(config, optimizer, table_update=variant)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_mean(values) for values in layer(ids).values()])
        variables = layer.trainable_variables
        gradients = tape.gradient(loss, variables)
        if variant != "engine":
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return tf.function(step, reduce_retracing=True)


class Own:
    """A variant of this process."""

    def __init__(self, variant, name, rows, dim, found):
        variant, _, other = variant.partition(" ")
        self._step = step_of(variant, other or name, rows, dim)
        sweeps = (variant, name, other) == ("tfrs", "adam", "")  # their Adam moves every row of every table
        self._batches = found[:1] if sweeps else found
        self.version = ""
        self.turn()

    def turn(self):
        """CPU milliseconds of a step: the mean over the batches."""
        start = time.process_time()
        for ids in self._batches:
            self._step(ids)
        return 1e3 * (time.process_time() - start) / len(self._batches)


class Peer:
    """A variant in a process of its own, with its own Python; it waits for its turn."""

    def __init__(self, command):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self._process.stdout.readline().strip()

    def turn(self):
        """See `Own`."""
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


def measured(case, variants, file, rounds):
    """CPU milliseconds of a step by variant, one figure per round; the variants take turns in changing order.

    Args:
      case: optimizer, dim and kind.
      variants: by name, None for one of this process or else a peer's command.
      file: of `write_ids`.
      rounds: how many.
    """
    name, dim, kind = case
    rows, found = sizes_of(file), list(batches(file, kind))
    runs = {
        variant: Peer([*command, str(file), name, str(dim)]) if command else Own(variant, name, rows, dim, found)
        for variant, command in variants.items()
    }
    times = {variant: [] for variant in runs}
    gc.disable()
    for turn in range(rounds):
        order = list(runs)
        for variant in order[turn % len(order) :] + order[: turn % len(order)]:
            times[variant].append(runs[variant].turn())
    return times, {variant: run.version for variant, run in runs.items() if run.version}


def sizes_of(file):
    """Rows of each table."""
    return np.load(file)["rows"].tolist()


def bytes_to_move(case, file):
    """Bytes of rows and slots that a step reads and writes at least: each distinct row once each way."""
    name, dim, kind = case
    distinct = sum(
        len(np.unique((ids if kind == "onehot" else ids.values).numpy()))
        for batch in batches(file, kind)
        for ids in batch.values()
    )
    return distinct / DISTINCT * dim * 4 * 2 * {"sgd": 1, "adagrad": 2, "adam": 3}[name]


def gather_rate(total, dim):
    """Bytes per CPU second at which this machine gathers random rows of a table, by tf.gather."""
    table = tf.Variable(tf.zeros([total, dim]))
    ids = tf.constant(np.random.default_rng(1).integers(0, total, 400_000))
    gather = tf.function(lambda: tf.gather(table, ids))
    gather()
    rates = []
    for _ in range(7):
        start = time.process_time()
        gather()
        rates.append(400_000 * dim * 4 / (time.process_time() - start))
    return statistics.median(rates)


def print_case(case, variants, file, rounds):
    """Measure a case and print it as JSON."""
    times, versions = measured(case, variants, file, rounds)
    moved, rate = bytes_to_move(case, file), gather_rate(sum(sizes_of(file)), case[1])
    print(json.dumps({"times": times, "versions": versions, "bound_ms": 1e3 * moved / rate, "rate": rate}))


def print_memory(optimizer, dim, file):
    """Print the peak memory of a process that trains by the engine, over that of its tables and slots."""
    found = list(batches(file, "onehot"))
    small = step_of("engine", optimizer, [4] * TABLES, dim)
    small({name: ids % 4 for name, ids in found[0].items()})  # TensorFlow's own buffers are there
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = step_of("engine", optimizer, sizes_of(file), dim)
    for ids in found:
        step(ids)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slots = {"sgd": 0, "adagrad": 1, "adam": 2}[optimizer]
    print(json.dumps((after - before) * 1024 / ((1 + slots) * sum(sizes_of(file)) * dim * 4)))

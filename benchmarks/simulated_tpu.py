"""Compares a training step of a 26-table model on the plain CPU and the simulated TPU, with equal global batches.

    python -m benchmarks.simulated_tpu [--runs 5] [--kinds onehot ragged] [--topologies 2x2 4x8]

Each measurement is a new process, and the settings take turns. For each setting it prints, as median and range
over the runs, the milliseconds of a step (CPU time of all threads, and wall time) and the seconds of tracing. It also
prints the median ratios of the step to the plain step of the same turn.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time

TABLES, DIM, ROWS, BATCH, STEPS = 26, 16, 10_000, 4096, 24


def config_of():
    """Return a configuration of 26 tables with one feature each."""
    from embedding_core import EmbeddingConfig, FeatureConfig, TableConfig

    places = range(TABLES)
    return EmbeddingConfig(
        tables=tuple(TableConfig(name=f"t{place}", vocabulary_size=ROWS, dim=DIM) for place in places),
        features=tuple(FeatureConfig(name=f"f{place}", table=f"t{place}") for place in places),
    )


def batch_of(kind, size, generator):
    """Draw log-uniform ids by feature: one per example, or one to five."""
    import numpy as np
    import tensorflow as tf

    def ids(count):
        return np.exp(generator.uniform(0, np.log(ROWS), count)).astype(np.int64) - 1

    if kind == "onehot":
        return {f"f{place}": tf.constant(ids(size)) for place in range(TABLES)}
    found = {}
    for place in range(TABLES):
        lengths = generator.integers(1, 6, size)
        found[f"f{place}"] = tf.RaggedTensor.from_row_lengths(ids(lengths.sum()), lengths)
    return found


class Dense:
    """The dense part: an MLP of 416-64-1 and its optimizer."""

    def __init__(self):
        import tf_keras as keras

        layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
        self._model = keras.Sequential(layers)
        self._model.build([None, TABLES * DIM])
        self._optimizer = keras.optimizers.Adagrad(0.01)
        self._optimizer.build(self._model.trainable_variables)

    def trained(self, activations, scale):
        """Take one step of the dense part, and return the gradients of the loss with respect to the activations."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(activations)
            joined = tf.concat([activations[f"f{place}"] for place in range(TABLES)], 1)
            loss = scale * tf.reduce_mean(tf.square(self._model(joined) - 1.0))
        variables = self._model.trainable_variables
        gradients, own = tape.gradient(loss, [activations, variables])
        self._optimizer.apply_gradients(zip(own, variables, strict=True))
        return gradients


def plain(kind, generator):
    """Return the step on the host engine, and its batches."""
    from embedding_core import Adagrad
    from embedding_core.engines import HostEngine

    engine, dense = HostEngine(config_of(), optimizer=Adagrad(learning_rate=0.05)), Dense()

    def step(ids):
        engine.apply_gradients(ids, dense.trained(engine.lookup(ids), 1.0))

    return step, [batch_of(kind, BATCH, generator) for _ in range(4)]


def simulated(kind, generator, hosts, cores):
    """Return the step on a simulated TPU, and its batches."""
    from embedding_core import Adagrad
    from embedding_core.engines import TPUEmbedding, simulated_tpu

    count = hosts * cores
    strategy = simulated_tpu(hosts=hosts, cores_per_host=cores)
    with strategy.scope():
        embedding, dense = TPUEmbedding(config_of(), Adagrad(learning_rate=0.05)), Dense()
    embedding.build(BATCH // count)

    def step(ids):
        embedding.enqueue(ids)
        strategy.run(lambda: embedding.apply_gradients(dense.trained(embedding.dequeue(), 1.0 / count)))

    batches = []
    for _ in range(4):
        parts = [batch_of(kind, BATCH // count, generator) for _ in range(count)]
        batches.append(
            strategy.experimental_distribute_values_from_function(
                lambda context, parts=parts: parts[context.replica_id_in_sync_group]
            )
        )
    return step, batches


def measure(kind, topology):
    """Trace, warm up, and time the steps of one setting; print a line for `measured` to parse."""
    import numpy as np
    import tensorflow as tf

    generator = np.random.default_rng(0)
    sizes = [int(number) for number in topology.split("x")] if "x" in topology else []
    step, batches = simulated(kind, generator, *sizes) if sizes else plain(kind, generator)
    function = tf.function(step, autograph=False, reduce_retracing=True)
    start, used = time.perf_counter(), time.process_time()
    function.get_concrete_function(batches[0])
    traced = time.perf_counter() - start, time.process_time() - used
    for batch in batches:
        function(batch)
    wall, cpu = [], []
    for turn in range(STEPS):
        start, used = time.perf_counter(), time.process_time()
        function(batches[turn % len(batches)])
        wall.append(1e3 * (time.perf_counter() - start))
        cpu.append(1e3 * (time.process_time() - used))
    print("result", statistics.median(cpu), statistics.median(wall), *reversed(traced))


def measured(kind, topology):
    """Measure in a new process; return CPU and wall milliseconds of a step, and CPU and wall seconds of tracing."""
    command = [sys.executable, "-m", "benchmarks.simulated_tpu", "--kinds", kind, "--measure", topology]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [float(number) for number in re.search(r"result (.*)", found).group(1).split()]


def spread(values):
    """Return the median of the values, then the least and the most in brackets."""
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def report(kind, topology, runs, base):
    """Print one row of the table."""
    cpu, wall, traced, traced_wall = zip(*runs, strict=True)
    ratios = [
        f"{statistics.median(one[place] / plain[place] for one, plain in zip(runs, base, strict=True)):.2f}x"
        for place in (0, 1)
    ]
    print(
        f"| {kind} | {topology} | {spread(cpu)} | {ratios[0]} | {spread(wall)} | {ratios[1]} "
        f"| {spread(traced)} | {spread(traced_wall)} |",
        flush=True,
    )


def main():
    """Run every setting in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=["onehot", "ragged"], choices=["onehot", "ragged"])
    parser.add_argument("--topologies", nargs="+", default=["2x2", "4x8"], help="hosts x cores per host")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.kinds[0], options.measure)
        return
    print("| ids | cores | CPU ms a step | ratio | wall ms a step | ratio | traced, CPU s | traced, wall s |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    settings = ["plain", *options.topologies]
    for kind in options.kinds:
        turns = [[measured(kind, topology) for topology in settings] for _ in range(options.runs)]
        columns = [list(column) for column in zip(*turns, strict=True)]
        for topology, runs in zip(settings, columns, strict=True):
            report(kind, topology, runs, columns[0])


if __name__ == "__main__":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()

"""One training step of a 26-table model: plain CPU against the simulated TPU, equal global batch.

    python benchmarks/simulated_tpu.py [--kind onehot|ragged] [--topologies 2x2 4x8]

Each measurement is a process of its own. Prints wall and CPU milliseconds per step (medians), their
ratio to the plain step, and the seconds that tracing took.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

TABLES, DIM, ROWS, BATCH, STEPS = 26, 16, 10_000, 4096, 24


def config_of():
    """26 tables of one feature each."""
    from embedding_core import EmbeddingConfig, FeatureConfig, TableConfig

    places = range(TABLES)
    return EmbeddingConfig(
        tables=tuple(TableConfig(name=f"t{place}", vocabulary_size=ROWS, dim=DIM) for place in places),
        features=tuple(FeatureConfig(name=f"f{place}", table=f"t{place}") for place in places),
    )


def batch_of(kind, size, generator):
    """Log-uniform ids: one per example, or one to five."""
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
        """The gradients of the activations, after one step of the dense part."""
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
    """The step on the host engine, and its batches."""
    from embedding_core import Adagrad
    from embedding_core.engines import HostEngine

    engine, dense = HostEngine(config_of(), optimizer=Adagrad(learning_rate=0.05)), Dense()

    def step(ids):
        engine.apply_gradients(ids, dense.trained(engine.lookup(ids), 1.0))

    return step, [batch_of(kind, BATCH, generator) for _ in range(4)]


def simulated(kind, generator, hosts, cores):
    """The step on a simulated TPU, and its batches."""
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
    """Trace, warm up, and time the steps of one setting; prints a line for `main`."""
    import numpy as np
    import tensorflow as tf

    generator = np.random.default_rng(0)
    sizes = [int(number) for number in topology.split("x")] if "x" in topology else []
    step, batches = simulated(kind, generator, *sizes) if sizes else plain(kind, generator)
    function = tf.function(step, autograph=False, reduce_retracing=True)
    start = time.perf_counter()
    function.get_concrete_function(batches[0])
    traced = time.perf_counter() - start
    for batch in batches:
        function(batch)
    wall, cpu = [], []
    for turn in range(STEPS):
        start, used = time.perf_counter(), time.process_time()
        function(batches[turn % len(batches)])
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    print(f"result {1e3 * statistics.median(wall):.2f} {1e3 * statistics.median(cpu):.2f} {traced:.2f}")


def main():
    """Run every setting and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="onehot", choices=["onehot", "ragged"])
    parser.add_argument("--topologies", nargs="+", default=["2x2", "4x8"])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.kind, options.measure)
        return
    base = None
    for topology in ["plain", *options.topologies]:
        command = [sys.executable, __file__, "--kind", options.kind, "--measure", topology]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        wall, cpu, traced = map(float, re.search(r"result (\S+) (\S+) (\S+)", found).groups())
        base = base or (wall, cpu)
        print(
            f"{options.kind:7s} {topology:6s} wall {wall:7.1f} ms ({wall / base[0]:.2f}x)  "
            f"cpu {cpu:7.1f} ms ({cpu / base[1]:.2f}x)  traced in {traced:.1f} s",
            flush=True,
        )


os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

if __name__ == "__main__":
    main()

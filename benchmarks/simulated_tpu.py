"""Compares a training step of a 26-table model on the plain CPU and the simulated TPU, with equal global batches.

    python -m benchmarks.simulated_tpu [--runs 5] [--kinds onehot ragged] [--topologies 2x2 4x8]

Each measurement is a new process, and the settings take turns. For each setting it prints, as median and range
over the runs, the milliseconds of a step (CPU time of all threads, and wall time) and the seconds of tracing. It also
prints the median ratios of the step to the plain step of the same turn.
"""

import argparse
import functools
import statistics

from benchmarks.measuring import in_new_process, ratio, show, spent, spread, table, take_turns

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
    """Trace, warm up, and time the steps of one setting; return seconds by name."""
    import numpy as np
    import tensorflow as tf

    generator = np.random.default_rng(0)
    sizes = [int(number) for number in topology.split("x")] if "x" in topology else []
    step, batches = simulated(kind, generator, *sizes) if sizes else plain(kind, generator)
    function = tf.function(step, autograph=False, reduce_retracing=True)
    traced = spent(lambda: function.get_concrete_function(batches[0]))
    for batch in batches:
        function(batch)
    steps = [spent(functools.partial(function, batches[turn % len(batches)])) for turn in range(STEPS)]
    cpu, wall = (statistics.median(times) for times in zip(*steps, strict=True))
    return {"cpu": cpu, "wall": wall, "traced_cpu": traced.cpu, "traced_wall": traced.wall}


def rows_of(kind, runs):
    """Yield the cells of each setting."""
    for topology in runs:
        figures, base = (
            {name: [run[name] for run in runs[setting]] for name in runs[setting][0]} for setting in (topology, "plain")
        )
        cells = [kind, topology]
        for name in ("cpu", "wall"):
            cells += [spread([1e3 * seconds for seconds in figures[name]]), ratio(figures[name], base[name])]
        yield [*cells, spread(figures["traced_cpu"]), spread(figures["traced_wall"])]


def main():
    """Run every setting in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=["onehot", "ragged"], choices=["onehot", "ragged"])
    parser.add_argument("--topologies", nargs="+", default=["2x2", "4x8"], help="hosts x cores per host")
    options = parser.parse_args()
    rows = []
    for kind in options.kinds:
        turns = {
            topology: lambda kind=kind, topology=topology: in_new_process(measure, kind, topology)
            for topology in ("plain", *options.topologies)
        }
        rows += rows_of(kind, take_turns(turns, options.runs))
    times = ["CPU ms a step", "ratio", "wall ms a step", "ratio", "traced, CPU s", "traced, wall s"]
    show(table(["ids", "hosts x cores", *times], rows), None, "")


if __name__ == "__main__":
    main()

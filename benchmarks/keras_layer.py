"""One training step of 26 tables: this project's Keras layer against TensorFlow Recommenders' and plain Keras.

    python -m benchmarks.keras_layer [--rows 5280000] [--rounds 9] [--cases adagrad-16-onehot ...]

Every variant of a case is built in one process on one core, and the variants take turns in changing order, one
block of steps each, so that what else the machine does meets all of them; a second process makes and runs them in
the opposite order, since where memory lies counts too. CPU time of the process; a figure is the
median over the rounds, with the smallest and largest, a ratio the median of the rounds' ratios. The loss is the
mean of the activations, so that nothing but the embedding is measured. Also prints the step as a multiple of
the time to gather, at this machine's rate, the bytes that it must move, and the memory of the process.
"""

import argparse
import gc
import os
import re
import resource
import statistics
import subprocess
import sys
import time

TABLES, BATCH, DISTINCT = 26, 4096, 4
CASES = [
    f"{optimizer}-{dim}-{kind}"
    for kind, dims in (("onehot", (16, 64)), ("ragged", (16,)))
    for dim in dims
    for optimizer in ("sgd", "adagrad", "adam")
]


def sizes(total):
    """26 table sizes from a few rows to a third of all, in the manner of click logs."""
    import numpy as np

    shares = np.geomspace(1e-5, 1.0, TABLES)
    return np.maximum(4, shares / shares.sum() * total).astype(int).tolist()


def batches(kind, rows):
    """Log-uniform ids: one per example, or 1 to 9 (5 on average)."""
    import numpy as np
    import tensorflow as tf

    generator = np.random.default_rng(0)

    def ids(count, size):
        return np.minimum(np.exp(generator.uniform(0, np.log(size), count)).astype(np.int64), size - 1)

    for _ in range(DISTINCT):
        if kind == "onehot":
            yield {f"f{place}": tf.constant(ids(BATCH, size)) for place, size in enumerate(rows)}
        else:
            lengths = [generator.integers(1, 10, BATCH) for _ in rows]
            yield {
                f"f{place}": tf.RaggedTensor.from_row_lengths(ids(own.sum(), size), own)
                for place, (own, size) in enumerate(zip(lengths, rows, strict=True))
            }


def configs(rows, dim):
    """One feature per table."""
    import tensorflow as tf

    tpu = tf.tpu.experimental.embedding
    zeros = tf.zeros_initializer()
    return {
        f"f{place}": tpu.FeatureConfig(tpu.TableConfig(size, dim, zeros, name=f"t{place}"))
        for place, size in enumerate(rows)
    }


def keras_optimizer(name):
    """The older Keras optimizer, which TensorFlow Recommenders asks for."""
    import tf_keras

    return {"sgd": tf_keras.optimizers.legacy.SGD, "adagrad": tf_keras.optimizers.legacy.Adagrad}.get(
        name, tf_keras.optimizers.legacy.Adam
    )(0.01)


def step_of(variant, name, rows, dim):
    """A traced training step of one variant."""
    import tensorflow as tf

    from embedding_core.layer import TPUEmbedding

    optimizer = keras_optimizer(name)
    if variant == "tfrs":
        from tensorflow_recommenders.layers.embedding import TPUEmbedding as Theirs

        layer = Theirs(configs(rows, dim), optimizer)
    else:
        layer = TPUEmbedding(configs(rows, dim), optimizer, table_update=variant)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_mean(values) for values in layer(ids).values()])
        variables = layer.trainable_variables
        gradients = tape.gradient(loss, variables)
        if variant != "engine":
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return tf.function(step, reduce_retracing=True)


def variants_of(case):
    """Which variants a case compares; the bound that Adam is held to is their Adagrad."""
    if case.startswith("adam-64"):  # theirs would take another 5 GB
        return ["engine", "tfrs adagrad"]
    return ["tfrs", "engine", "tfrs adagrad"] if case.startswith("adam") else ["tfrs", "keras", "engine"]


def measured(case, total, rounds, backwards):
    """Milliseconds of CPU per step, per round, of each variant."""
    name, dim, kind = case.split("-")
    rows = sizes(total)
    found = list(batches(kind, rows))
    steps = {
        variant: step_of(variant.split()[0], variant.partition(" ")[2] or name, rows, int(dim))
        for variant in variants_of(case)[:: -1 if backwards else 1]
    }
    for step in steps.values():
        for ids in found[:2]:
            step(ids)
    times = {variant: [] for variant in steps}
    gc.disable()
    for turn in range(rounds):
        order = list(steps.items())
        for variant, step in order[turn % len(order) :] + order[: turn % len(order)]:
            count = 1 if (name, variant) == ("adam", "tfrs") else DISTINCT  # theirs sweeps every row
            start = time.process_time()
            for ids in found[:count]:
                step(ids)
            times[variant].append(1e3 * (time.process_time() - start) / count)
    return times


def must_move(name, dim, kind, total):
    """Bytes of rows and slots that a step reads and writes at least: each distinct row once each way."""
    import numpy as np

    distinct = 0
    for ids in batches(kind, sizes(total)):
        for values in ids.values():
            flat = values.values if kind == "ragged" else values
            distinct += len(np.unique(flat.numpy()))
    variables = {"sgd": 1, "adagrad": 2, "adam": 3}[name]
    return distinct / DISTINCT * dim * 4 * 2 * variables


def gather_rate(total, dim):
    """Bytes per second at which this machine gathers random rows of a table, by tf.gather."""
    import numpy as np
    import tensorflow as tf

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


def measure(case, total, rounds, backwards):
    """Measure one case in this process; prints lines for `main`."""
    name, dim, kind = case.split("-")
    times = measured(case, total, rounds, backwards)
    for variant, found in times.items():
        print("result", variant.replace(" ", "_"), *(f"{time:.2f}" for time in found))
    print(f"bytes {must_move(name, int(dim), kind, total):.0f} {gather_rate(total, int(dim)):.0f}")


def memory(total, dim):
    """Peak memory of a process that trains by the engine with Adam, over its tables and slots; prints a line."""
    rows = sizes(total)
    warm = step_of("engine", "adam", [4] * TABLES, dim)
    warm(next(batches("onehot", [4] * TABLES)))
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = step_of("engine", "adam", rows, dim)
    for ids in batches("onehot", rows):
        step(ids)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"memory {(peak - base) * 1024 / (3 * sum(rows) * dim * 4):.3f}")


def child(*arguments):
    """The output of this file in a process of its own, on one core."""
    core = str(max(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, sys.executable, "-m", "benchmarks.keras_layer", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return done.stdout


def report(case, output):
    """One line per variant of a case, with ratios to TensorFlow Recommenders' in the same rounds."""
    lines = (line.split() for line in output.splitlines())
    found = {variant: [] for variant in variants_of(case)}
    for kind, name, *times in lines:
        if kind == "result":
            found[name.replace("_", " ")] += map(float, times)
    moved, rate = map(float, re.search(r"bytes (\S+) (\S+)", output).groups())
    adagrad = found.get("tfrs adagrad") or (found["tfrs"] if case.startswith("adagrad") else None)
    for variant, times in found.items():
        median = statistics.median(times)
        ratios = [f"{ratio(times, base):.2f}" if base else "" for base in (found.get("tfrs"), adagrad)]
        cells = [case, variant, f"{median:.1f} ({min(times):.1f}-{max(times):.1f})", *ratios]
        print("|", " | ".join([*cells, f"{median / (1e3 * moved / rate):.1f}"]), "|", flush=True)


def ratio(times, base):
    """The median of the rounds' ratios."""
    return statistics.median(own / other for own, other in zip(times, base, strict=True))


def main():
    """Run every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_280_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--backwards", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.rows, options.rounds, options.backwards)
        return
    if options.memory:
        memory(options.rows, options.memory)
        return
    print("| case | variant | CPU ms per step (least-most) | of TFRS | of TFRS Adagrad | of the bytes |")
    print("|---|---|---|---|---|---|", flush=True)
    for case in options.cases:
        arguments = ["--measure", case, "--rows", str(options.rows), "--rounds", str(options.rounds)]
        report(case, child(*arguments) + child(*arguments, "--backwards"))
    output = child("--memory", "64", "--rows", str(options.rows))
    print("engine mode, Adam, dim 64: peak memory of tables and slots x", re.search(r"memory (\S+)", output)[1])


os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if __name__ == "__main__":
    main()

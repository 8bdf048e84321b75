"""Tests that the memory of a step depends on the size of the batch and not on that of the tables.

``python -m tests.embedding_core.engines.test_step_memory <kind> ...`` runs steps, and the last ones in a process that
may hardly use more memory than it has: the kernel keeps to this limit, whereas its counters of memory are approximate.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from embedding_core import Adagrad, EmbeddingConfig, FeatureConfig, InitializerConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, simulated_tpu
from embedding_core.layer import TPUEmbedding as TPUEmbeddingLayer

ROOT = Path(__file__).parents[3]
ROWS = 25_000_000  # one byte per row is more than the limit leaves, and more than malloc keeps of freed memory
BATCH = 128
CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="t", vocabulary_size=ROWS, dim=1, initializer=InitializerConfig(name="constant", scale=0.1)),
    ),
    features=(FeatureConfig(name="f", table="t"),),
)
PIECE = 5_000_000


def host_step(graph):
    engine = HostEngine(CONFIG, optimizer=Adagrad())

    def step(ids):
        engine.apply_gradients({"f": ids}, engine.lookup({"f": ids}))

    return tf.function(step) if graph else step


def simulated_step(pipelined):
    strategy = simulated_tpu(hosts=2, cores_per_host=2)
    with strategy.scope():
        embedding = TPUEmbedding(CONFIG, Adagrad(), pipeline_execution_with_tensor_core=pipelined)
    embedding.build(BATCH // 4)

    @tf.function
    def step(ids):
        for core, device in enumerate(strategy.extended.worker_devices):
            embedding.enqueue({"f": ids[core * BATCH // 4 : (core + 1) * BATCH // 4]}, device=device)
        strategy.run(lambda: embedding.apply_gradients(embedding.dequeue()))

    return step


def layer_step():
    layer = TPUEmbeddingLayer(CONFIG, "adagrad", table_update="engine")
    layer.build(None)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer({"f": ids})["f"])
        tape.gradient(loss, layer.trainable_variables)

    return step


STEPS = {
    "layer": layer_step,
    "simulated TPU": lambda: simulated_step(pipelined=False),
    "pipelined simulated TPU": lambda: simulated_step(pipelined=True),
    "host engine": lambda: host_step(graph=False),
    "host engine in a graph": lambda: host_step(graph=True),
}


def limit_memory():
    """Forbid more address space, and use what there is up to three pieces of `PIECE` bytes; return what is used."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 20 * PIECE,) * 2)
    held = []
    try:
        while True:
            held.append(tf.fill([PIECE], tf.constant(1, tf.int8)))
    except tf.errors.ResourceExhaustedError:
        return held[:-2]


def main(*kinds):
    steps = [STEPS[kind]() for kind in kinds]
    for step in steps:
        for start in (0, 1000):
            step(tf.range(start, start + BATCH))
    held = limit_memory()
    for step in steps:
        step(tf.range(2000, 2000 + BATCH))
    sys.stdout.write(f"trained beside {len(held)} pieces\n")
    try:
        tf.fill([ROWS], tf.constant(1, tf.int8))
    except tf.errors.ResourceExhaustedError:
        sys.stdout.write("refused a byte per row\n")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of address space is Linux'")
@pytest.mark.parametrize(
    "kinds",
    [("simulated TPU", "layer"), *(pytest.param((kind,), marks=pytest.mark.slow) for kind in list(STEPS)[2:])],
    ids=" and ".join,
)
def test_step_on_a_large_table_makes_nothing_per_row(kinds):
    command = [sys.executable, "-m", "tests.embedding_core.engines.test_step_memory", *kinds]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("trained beside ")
    assert done.stdout.endswith("refused a byte per row\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

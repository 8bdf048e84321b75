"""Tests that the memory of a step depends on the size of the batch and not on that of the tables."""

from pathlib import Path

import pytest
import tensorflow as tf

from embedding_core import Adagrad, EmbeddingConfig, FeatureConfig, InitializerConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, simulated_tpu

simulated_tpu(hosts=2, cores_per_host=4)  # makes the logical devices before TensorFlow runs its first operation

ROWS, BATCH = 10_000_000, 128
CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="t", vocabulary_size=ROWS, dim=8, initializer=InitializerConfig(name="constant", scale=0.1)),
    ),
    features=(FeatureConfig(name="f", table="t"),),
)
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def megabytes(key):
    return int(next(line for line in STATUS.read_text().splitlines() if line.startswith(key)).split()[1]) / 1024


def peak_of(call):
    """Return by how many megabytes the call raises the memory of the process at its peak.

    A buffer with an entry per table row always raises the peak. Freeing a buffer of this size returns its memory to
    the system at once, so no earlier call leaves memory that could hold it.
    """
    RESET.write_text("5")
    before = megabytes("VmRSS")
    call()
    return megabytes("VmHWM") - before


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


def check(step):
    for start in (0, 1000):
        step(tf.range(start, start + BATCH))
    assert peak_of(lambda: step(tf.range(2000, 2000 + BATCH))) < 8  # one byte per row would take 10


@pytest.mark.skipif(not RESET.exists(), reason="the kernel cannot reset its record of peak memory")
class TestStepOnALargeTable:
    def test_of_the_simulated_tpu(self):
        check(simulated_step(pipelined=False))

    @pytest.mark.slow
    def test_of_the_pipelined_simulated_tpu(self):
        check(simulated_step(pipelined=True))

    @pytest.mark.slow
    @pytest.mark.parametrize("graph", [False, True])
    def test_of_the_host_engine(self, graph):
        check(host_step(graph))

    def test_would_fail_if_anything_were_made_per_row(self):
        assert peak_of(lambda: tf.zeros([ROWS], tf.int32).numpy()) > 8

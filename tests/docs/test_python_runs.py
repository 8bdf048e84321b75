"""Runs the Python of docs/preflight.md and docs/simulated_tpu.md inside a reader's program.

The Python of other pages has tests beside what it shows; `test_every_block.py` names them.
"""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from code_blocks import block_with

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import TPUEmbedding, simulated_tpu
from embedding_core.optimizers import Adagrad

tpu = tf.tpu.experimental.embedding


def execute(page, text, program):
    """Run the block of the page that has a text, with the program's names; return all names."""
    exec(compile(block_with(page, text).text, page, "exec"), program)
    return program


def saved_rows(embedding, path):
    """Return the rows of the table `items`, as a checkpoint has them."""
    reader = tf.train.load_checkpoint(tf.train.Checkpoint(embedding=embedding).write(str(path)))
    (key,) = (key for key in reader.get_variable_to_shape_map() if "items" in key and "accumulators" not in key)
    return reader.get_tensor(key)


def test_step_of_the_readers_own_passes_the_preflight():
    table = TableConfig(name="items", vocabulary_size=1000, dim=8, optimizer=Adagrad())
    config = EmbeddingConfig(tables=(table,), features=(FeatureConfig(name="item", table="items"),))
    given = {"tf": tf, "tf_keras": tf_keras, "embedding_config": config}
    names = execute("docs/preflight.md", "def make_step", given)
    assert names["report"].findings == ()


def test_step_on_the_simulated_tpu(tmp_path):
    features = {"item": tpu.FeatureConfig(tpu.TableConfig(10, 4, name="items"), output_shape=[2])}
    model = tf_keras.layers.Dense(1)
    names = execute("docs/simulated_tpu.md", "strategy = simulated_tpu", {
        "tf": tf, "simulated_tpu": simulated_tpu, "TPUEmbedding": TPUEmbedding,
        "feature_config": features, "per_core_batch": 2, "model": lambda rows, rest: model(rows["item"]) - rest,
        "loss_of": lambda difference: tf.reduce_sum(difference**2),
    })  # fmt: skip
    ids = np.arange(8) % 5
    rows = tf.data.Dataset.from_tensors(({"item": tf.constant(ids)}, tf.ones([8, 1]))).unbatch().batch(8)
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    before = saved_rows(names["embedding"], tmp_path / "before")
    names["step"](iter(names["strategy"].experimental_distribute_dataset(rows, options)))
    changed = np.any(saved_rows(names["embedding"], tmp_path / "after") != before, axis=1)
    assert changed.tolist() == [row in ids for row in range(10)]


@pytest.mark.room("sparse_cores")
def test_step_on_simulated_sparse_cores():
    from embedding_core.sparse_cores import SparseCoreEmbeddingConfig
    from embedding_core.sparse_cores.tpu_embedding import TPUEmbeddingV2

    features = {"item": tpu.FeatureConfig(tpu.TableConfig(16, 8, name="items"), output_shape=[4])}
    strategy = simulated_tpu(cores_per_host=1, embedding_feature="V2", sparse_cores=2)
    names = execute("docs/simulated_tpu.md", "def on_chip", {
        "tf": tf, "strategy": strategy, "TPUEmbeddingV2": TPUEmbeddingV2, "Adagrad": tpu.Adagrad,
        "feature_config": features, "limits": SparseCoreEmbeddingConfig(),
        "model": lambda rows, rest: rows["item"] - rest, "loss_of": lambda difference: tf.reduce_sum(difference**2),
    })  # fmt: skip
    step = tf.function(lambda ids, rest: strategy.run(names["on_chip"], (ids, rest)), autograph=False)
    (stack,) = names["embedding"].embedding_tables.values()
    before = stack.numpy().copy()
    step({"item": tf.constant([1, 2, 2, 7])}, tf.ones([4, 1]))
    assert np.any(stack.numpy() != before, axis=1).sum() == 3

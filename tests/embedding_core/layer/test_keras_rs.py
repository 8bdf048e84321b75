"""The configurations of keras-rs, in the layer for Keras 3, and docs/moving_from_keras_rs.md."""

import numpy as np
import pytest
import tensorflow as tf
from code_blocks import blocks_of

from embedding_core.errors import ConfigError

keras = pytest.importorskip("keras", minversion="3")
rs = pytest.importorskip("keras_rs")
from embedding_core.layer.keras3 import TPUEmbedding  # noqa: E402

BATCH, ROWS, DIM = 8, 30, 4


def config_of(optimizer="adam", output=(BATCH, DIM), combiner="mean", **table):
    initializer = keras.initializers.RandomUniform(seed=3)
    table = rs.layers.TableConfig("t", ROWS, DIM, initializer, optimizer, combiner, **table)
    return {name: rs.layers.FeatureConfig(name, table, (BATCH, 3), output) for name in ("f", "g")}


def trained(layer, optimizer):
    """Return the rows of the table after 20 steps in which the optimizer updates it."""
    for step in range(20):
        generator = np.random.default_rng(step)
        ids = {name: tf.constant(generator.integers(0, ROWS, (BATCH, 3))) for name in ("f", "g")}
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf.square(values - 0.3)) for values in layer(ids).values()])
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    (table,) = layer.trainable_variables
    return table.numpy()


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_tables_that_keras_updates_are_those_of_keras_rs(name, combiner):
    rows = []
    for cls in (TPUEmbedding, rs.layers.DistributedEmbedding):
        optimizer = getattr(keras.optimizers, name)(0.05)
        rows.append(trained(cls(config_of(optimizer, combiner=combiner)), optimizer))
    np.testing.assert_allclose(rows[0], rows[1], rtol=2e-5, atol=1e-6)


def test_engine_takes_the_optimizer_of_the_table():
    layer = TPUEmbedding(config_of("adagrad"), table_update="engine")
    layer.build()
    assert set(layer.table_variables) == {"t", "t/accumulators"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"placement": "sparsecore"}, "`placement` of table 't' of keras-rs is 'sparsecore'"),
        ({"max_ids_per_partition": 8}, "sparse_core_embedding_config"),
        ({"output": (BATCH, 3, DIM)}, "max_sequence_length"),
    ],
)
def test_what_means_another_thing_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        TPUEmbedding(config_of(**given))


def test_page_of_the_move_runs():
    program = {}
    for block in blocks_of("docs/moving_from_keras_rs.md"):
        exec(compile(block.text, block.page, "exec"), program)
    (rows,) = program["embedding"].embedding_tables.values()
    np.testing.assert_array_equal(rows, program["rows"]["users"])

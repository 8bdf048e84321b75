"""Gradients of duplicate ids are added up accurately in float32 and applied once."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import SGD, Adagrad
from embedding_core.engines.table_updates import LONGEST_SUM, accumulated, apply_to_table


def moved(count, gradient, *, row, optimizer, dtype=tf.float32):
    """Return by how much `count` equal gradients of one id change its row."""
    table = tf.Variable(tf.fill([3, 2], row))
    slots = [tf.Variable(tf.fill([3, 2], slot.initial)) for slot in optimizer.slots]
    gradients = tf.cast(tf.fill([count, 2], gradient), dtype)
    apply_to_table(optimizer, table, slots, tf.zeros([count], tf.int64), gradients, optimizer.learning_rate)
    np.testing.assert_array_equal(table[1:], tf.fill([2, 2], row))
    return (table[0].numpy() - np.float64(np.float32(row)))[0]


@pytest.mark.parametrize(
    ("count", "gradient", "row", "expected"),
    [(32768, 3e-7, 0.3, -9.8304e-5), (65536, 3.8146973e-6, 1.0, -2.5e-3), (1000, 1e-4, 1.0, -1e-3)],
)
def test_tiny_gradients_of_a_hot_id_move_its_row(count, gradient, row, expected):
    assert moved(count, gradient, row=row, optimizer=SGD(learning_rate=0.01)) == pytest.approx(expected, rel=1e-3)


def test_updates_one_by_one_round_each_occurrence():
    assert moved(32768, 3e-7, row=0.3, optimizer=SGD(learning_rate=0.01, use_gradient_accumulation=False)) == 0


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("optimizer", [SGD(learning_rate=0.01), Adagrad(learning_rate=0.01)])
def test_gradients_of_half_precision_add_up_in_float32(optimizer, dtype):
    gradient = 2.0**-10
    assert moved(6000, gradient, row=0.5, optimizer=optimizer, dtype=dtype) == pytest.approx(
        moved(6000, gradient, row=0.5, optimizer=optimizer), rel=1e-6
    )


@pytest.mark.parametrize("hot", [LONGEST_SUM, LONGEST_SUM + 1, 1_000_000])
@pytest.mark.parametrize("known", [True, False])
def test_sums_are_those_of_float64(hot, known):
    generator = np.random.default_rng(hot)
    ids = generator.permutation(np.r_[np.full(hot, 7), generator.integers(50, size=1000)])
    gradients = np.broadcast_to(generator.uniform(1, 2, 4).astype(np.float32), [len(ids), 4])
    function = accumulated
    if not known:
        function = tf.function(accumulated, input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 4])])
    unique, sums = function(tf.constant(ids), tf.constant(gradients))
    expected = np.zeros([50, 4])
    np.add.at(expected, ids, gradients.astype(np.float64))
    assert unique.numpy().tolist() == list(dict.fromkeys(ids.tolist()))
    np.testing.assert_allclose(sums, expected[unique.numpy()], rtol=1e-4)


@pytest.mark.parametrize("rows", [5, 4096, 5000])
@pytest.mark.parametrize("optimizer", [SGD(learning_rate=0.01), SGD(learning_rate=0.01, clipvalue=0.5)])
def test_small_and_large_tables_descend_alike(rows, optimizer):
    generator = np.random.default_rng(rows)
    ids = np.where(generator.random(9000) < 0.7, 2, generator.integers(rows, size=9000))
    gradients = generator.uniform(1e-6, 2e-4, [9000, 3]).astype(np.float32)
    first = generator.normal(size=[rows, 3]).astype(np.float32)
    expected = np.zeros([rows, 3])
    np.add.at(expected, ids, gradients.astype(np.float64))
    table = tf.Variable(first)
    apply_to_table(optimizer, table, [], tf.constant(ids), tf.constant(gradients), 0.01)
    expected = first - 0.01 * np.minimum(expected, optimizer.clipvalue or np.inf)
    np.testing.assert_allclose(table, expected, rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("accumulates", [True, False])
def test_no_ids_are_no_update(known, accumulates):
    table, optimizer = tf.Variable(tf.ones([3, 2])), SGD(learning_rate=0.01, use_gradient_accumulation=accumulates)

    def step(ids, gradients):
        apply_to_table(optimizer, table, [], ids, gradients, 0.01)

    if not known:
        step = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2])])
    step(tf.zeros([0], tf.int64), tf.zeros([0, 2]))
    np.testing.assert_array_equal(table, np.ones([3, 2]))

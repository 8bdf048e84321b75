"""The CPU lookup gives the documented results, and those of TensorFlow's `serving_embedding_lookup`."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.lookup import cpu_embedding_lookup

tpu = tf.tpu.experimental.embedding
TABLE = np.arange(10, dtype=np.float32).reshape(5, 2) + 1


def ours(value, weight=None, *, combiner="mean", **feature):
    table = TableConfig(name="t", vocabulary_size=5, dim=2, combiner=combiner)
    config = FeatureConfig(name="f", table="t", **feature)
    return cpu_embedding_lookup(value, weight, {table: tf.Variable(TABLE)}, config)


def theirs(value, weight=None, *, combiner="mean", quantization_config=None, **feature):
    table = tpu.TableConfig(5, 2, combiner=combiner, quantization_config=quantization_config)
    return cpu_embedding_lookup(value, weight, {table: tf.Variable(TABLE)}, tpu.FeatureConfig(table, **feature))


RAGGED = tf.ragged.constant([[0, 1], [], [2, 2, 4], []], dtype=tf.int64)
SPARSE = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([0, 1]), [2, 2])
RAGGED_WEIGHTS = tf.ragged.constant([[1.0, -1.0], [], [1.0, 2.0, 0.5], []])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ragged_lookup_is_tensorflows(combiner, weighted):
    table = tpu.TableConfig(5, 2, combiner=combiner)
    config, tables = tpu.FeatureConfig(table), {table: tf.Variable(TABLE)}
    weights = RAGGED_WEIGHTS if weighted else None
    expected = tpu.serving_embedding_lookup(RAGGED, weights, tables, config)
    np.testing.assert_allclose(cpu_embedding_lookup(RAGGED, weights, tables, config), expected, rtol=1e-6)


def test_dense_of_rank_three_gives_a_vector_for_each_id():
    np.testing.assert_array_equal(ours(tf.constant([[[1], [2]]])), [TABLE[[1, 2]]])


@pytest.mark.parametrize("dtype", [tf.int32, tf.float64])
def test_weights_of_other_types_are_cast(dtype):
    found = ours(RAGGED, tf.cast(tf.ones_like(RAGGED), dtype))
    np.testing.assert_allclose(found, ours(RAGGED), rtol=1e-6)


def test_nan_weight_counts_as_zero():
    weights = tf.ragged.constant([[1.0, float("nan")], [], [1.0, 1.0, 1.0], []])
    np.testing.assert_array_equal(ours(RAGGED, weights)[0], TABLE[0])


def test_sparse_sequence_keeps_its_gaps():
    sparse = tf.SparseTensor([[0, 2]], tf.constant([1], tf.int64), [1, 3])
    np.testing.assert_array_equal(ours(sparse, max_sequence_length=3), [[[0, 0], [0, 0], TABLE[1]]])


def test_sparse_of_rank_three_combines_the_last():
    sparse = tf.sparse.from_dense(tf.constant([[[1, 2], [0, 3]], [[0, 0], [4, 0]]], tf.int64))
    expected = [[(TABLE[1] + TABLE[2]) / 2, TABLE[3]], [[0, 0], TABLE[4]]]
    np.testing.assert_array_equal(ours(sparse), expected)


@pytest.mark.parametrize(
    ("policy", "expected"), [("row", (TABLE[4] + TABLE[1]) / 2), ("drop", TABLE[1])], ids=["row", "drop"]
)
@pytest.mark.parametrize("invalid", [-1, 5, 2**40])
def test_invalid_id_follows_its_policy_in_every_kind(policy, expected, invalid):
    ragged = tf.ragged.constant([[invalid, 1]], dtype=tf.int64)
    for value in (ragged, ragged.to_sparse()):
        np.testing.assert_array_equal(ours(value, invalid_id=policy), [expected])
    dense = ours(tf.constant([[invalid]], tf.int64), invalid_id=policy)
    np.testing.assert_array_equal(dense, [TABLE[4] if policy == "row" else [0, 0]])


def test_quantization_is_honoured():
    found = theirs(tf.constant([0, 4]), quantization_config=tpu.QuantizationConfig(3, 0.0, 8.0))
    np.testing.assert_array_equal(found, [[0, 4], [8, 8]])


@pytest.mark.parametrize(("shape", "expected"), [([4], [4, 2]), ([2, 2], [2, 2, 2]), ([4, 3], [4, 3, 2])])
def test_ragged_output_shape_is_exportable_with_unknown_batch(shape, expected):
    look_up = tf.function(
        lambda ids: theirs_with_table(ids, shape), input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)]
    )
    assert look_up(RAGGED).shape == expected
    np.testing.assert_array_equal(look_up(RAGGED), theirs(RAGGED, output_shape=shape))


def theirs_with_table(ids, shape):
    table = tpu.TableConfig(5, 2)
    return cpu_embedding_lookup(ids, None, {table: tf.constant(TABLE)}, tpu.FeatureConfig(table, output_shape=shape))


@pytest.mark.parametrize(
    ("value", "weight", "feature", "message"),
    [
        (np.array([1]), None, {}, "Tensor, SparseTensor or RaggedTensor expected"),
        (tf.constant([1.0]), None, {}, "must be integers"),
        (tf.constant([[1, 2]]), None, {}, "last dimension as 1"),
        (tf.constant([1]), tf.constant([1.0]), {}, "input is dense"),
        (tf.constant([1]), None, {"max_sequence_length": 2}, "sequence feature but a dense"),
        (RAGGED, RAGGED_WEIGHTS.to_sparse(), {}, "does not match type"),
        (RAGGED, RAGGED_WEIGHTS, {"max_sequence_length": 2}, "this is a sequence feature"),
        (RAGGED, tf.ragged.constant([[1.0], [1.0], [1.0, 1.0, 1.0], []]), {}, "other indices"),
        (SPARSE, tf.SparseTensor([[0, 0], [1, 1]], [1.0, 1.0], [2, 2]), {}, "other indices"),
        (tf.ragged.constant([[[1]]]), None, {}, "Only 2D ragged"),
        (tf.constant([7]), None, {}, "not in"),
    ],
)
def test_bad_input_is_refused(value, weight, feature, message):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        ours(value, weight, **feature)


def test_embedding_config_and_nested_structures_are_looked_up():
    table = TableConfig(name="t", vocabulary_size=5, dim=2)
    config = EmbeddingConfig(tables=(table,), features=(FeatureConfig(name="f", table="t"),))
    ids = tf.constant([3])
    assert list(cpu_embedding_lookup({"f": ids}, None, {"t": tf.Variable(TABLE)}, config)) == ["f"]
    nested = {"a": (FeatureConfig(name="f", table="t"), FeatureConfig(name="g", table="t"))}
    found = cpu_embedding_lookup({"a": (ids, ids)}, None, {table: tf.Variable(TABLE)}, nested)
    np.testing.assert_array_equal(found["a"][1], [TABLE[3]])


def test_missing_table_is_named():
    with pytest.raises(KeyError, match="'t'"):
        cpu_embedding_lookup(tf.constant([1]), None, {}, FeatureConfig(name="f", table="t"))

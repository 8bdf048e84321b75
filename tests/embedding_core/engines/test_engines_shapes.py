"""Output shapes: the configured one, else the built one, else the input's; conflicts and unknown sizes are refused."""

import pytest
import tensorflow as tf

from embedding_core import SGD
from embedding_core.engines import TPUEmbedding, feeding, simulated_tpu
from embedding_core.feature_specs import FeatureSpec

tpu = tf.tpu.experimental.embedding

PLAIN = FeatureSpec("f", "t", 7, 2)
SEQUENCE = FeatureSpec("f", "t", 7, 2, max_sequence_length=3)
RAGGED = tf.ragged.constant([[1], [2, 3], [], [4]], dtype=tf.int64)


def activations_shape(feature, value, built=None):
    strategy = simulated_tpu(hosts=1, cores_per_host=1)
    with strategy.scope():
        embedding = TPUEmbedding(feature, SGD())
    if built is not None:
        embedding.build(built)
    embedding.enqueue(value, training=False)
    return strategy.run(tf.function(embedding.dequeue)).shape.as_list()


def feature_of(**arguments):
    return tpu.FeatureConfig(tpu.TableConfig(7, 2, name="t"), **arguments)


@pytest.mark.parametrize(
    ("arguments", "built", "expected"),
    [
        ({}, None, [4, 2]),
        ({}, 4, [4, 2]),
        ({}, tf.TensorShape([4, None]), [4, 2]),
        ({"max_sequence_length": 3}, None, [4, 3, 2]),
        ({"max_sequence_length": 3}, 4, [4, 3, 2]),
        ({"output_shape": [2, 2]}, None, [2, 2, 2]),
        ({"output_shape": [4, 2], "max_sequence_length": 3}, None, [4, 2, 2]),
        ({"output_shape": [2, 2]}, tf.TensorShape([2, 2, None]), [2, 2, 2]),
    ],
)
def test_configured_shape_precedes_the_built_and_the_input_one(arguments, built, expected):
    assert activations_shape(feature_of(**arguments), RAGGED, built) == expected


@pytest.mark.parametrize(
    ("arguments", "built", "message"),
    [
        ({"output_shape": [3]}, 4, "Inconsistent shape"),
        ({}, 3, "Inconsistent shape"),
        ({"output_shape": [None, 2]}, 4, "not fully defined"),
        ({"output_shape": [3]}, None, "Inconsistent shape"),
    ],
)
def test_shapes_that_contradict_are_refused(arguments, built, message):
    with pytest.raises(ValueError, match=message):
        activations_shape(feature_of(**arguments), RAGGED, built)


def test_input_of_unknown_batch_is_refused_before_build():
    with simulated_tpu().scope():
        embedding = TPUEmbedding(feature_of(), SGD())
    enqueue = tf.function(embedding.enqueue, input_signature=[tf.TensorSpec([None], tf.int64)])
    with pytest.raises(ValueError, match="not fully defined"):
        enqueue.get_concrete_function()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (tf.constant(1), "rank 1 and above dense"),
        (tf.constant([[1, 2]]), "last dimension as 1"),
        (tf.sparse.from_dense([1, 0]), "rank 2 and above sparse"),
        (tf.ragged.constant([[[1]]]), "rank 2 ragged"),
    ],
)
def test_input_of_a_wrong_rank_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        feeding.input_shape(value, PLAIN)


def test_sequence_has_its_length_in_its_shape():
    assert feeding.input_shape(RAGGED, SEQUENCE) == [4, 3, None]
    assert feeding.shapes_of_batch(4, [PLAIN, SEQUENCE]) == [[4], [4, 3]]

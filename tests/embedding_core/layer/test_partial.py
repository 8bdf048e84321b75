"""PartialTPUEmbedding keeps small tables in Keras' Embedding layers."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.errors import ConfigError, DataError
from embedding_core.layer import PartialTPUEmbedding

tpu = tf.tpu.experimental.embedding


def features(**sizes):
    return {
        name: tpu.FeatureConfig(tpu.TableConfig(size, 2, tf_keras.initializers.Constant(float(size)), name=name))
        for name, size in sizes.items()
    }


def test_tables_are_shared_out_by_size():
    layer = PartialTPUEmbedding(features(small=5, large=6), "sgd", size_threshold=5)
    found = layer({"small": tf.constant([1]), "large": tf.ragged.constant([[1, 2]])})
    assert found["small"].numpy().tolist() == [[5, 5]]
    assert found["large"].numpy().tolist() == [[6, 6]]
    assert list(layer.keras_embedding_layers) == ["small"]
    assert [table.name for table in layer.tpu_embedding.embedding_tables] == ["large"]
    assert len(layer.trainable_variables) == 2


@pytest.mark.parametrize(("threshold", "keras"), [(None, 2), (0, 0)])
def test_all_of_one_kind(threshold, keras):
    layer = PartialTPUEmbedding(features(a=5, b=6), "sgd", size_threshold=threshold)
    assert len(layer.keras_embedding_layers) == keras
    assert (layer.tpu_embedding is None) == (keras == 2)


def test_one_shape_on_both_sides_of_the_threshold():
    layer = PartialTPUEmbedding(features(small=5, large=6), "sgd", size_threshold=5)
    for ids in (tf.constant([1, 2]), tf.constant([[1], [2]]), tf.constant([[[1], [2]]]), tf.constant(1)):
        found = layer({"small": ids, "large": ids})
        assert found["small"].shape == found["large"].shape


def test_features_of_one_small_table_share_a_layer():
    table = tpu.TableConfig(5, 2, name="t")
    layer = PartialTPUEmbedding({"a": tpu.FeatureConfig(table), "b": tpu.FeatureConfig(table)}, "sgd")
    found = layer({"a": tf.constant([1]), "b": tf.constant([1])})
    np.testing.assert_array_equal(found["a"], found["b"])
    assert len(layer.trainable_variables) == 1


def test_wrong_inputs_are_named():
    layer = PartialTPUEmbedding(features(small=5), "sgd")
    with pytest.raises(DataError, match="feature 'small' got"):
        layer({"small": tf.ragged.constant([[1]])})
    with pytest.raises(DataError, match=r"missing \['small'\], not configured \['x'\]"):
        layer({"x": tf.constant([1])})


def test_what_a_small_table_would_ignore_is_refused():
    for feature in (
        tpu.FeatureConfig(tpu.TableConfig(5, 2, optimizer=tpu.SGD())),
        tpu.FeatureConfig(tpu.TableConfig(5, 2), max_sequence_length=3),
        tpu.FeatureConfig(tpu.TableConfig(5, 2), output_shape=[3]),
        tpu.FeatureConfig(tpu.TableConfig(5, 2, quantization_config=tpu.QuantizationConfig(2, 0.0, 1.0))),
    ):
        with pytest.raises(ConfigError, match="size_threshold"):
            PartialTPUEmbedding({"f": feature}, "sgd")


@pytest.mark.parametrize("given", [None, [features(a=1)["a"]], {"a": [features(a=1)["a"]]}, {"a": "x"}])
def test_other_structures_are_refused(given):
    with pytest.raises(ConfigError, match="must be a dict of"):
        PartialTPUEmbedding(given, "sgd")


def test_activations_of_both_sides_have_the_compute_dtype():
    layer = PartialTPUEmbedding(features(small=5, large=6), "sgd", size_threshold=5, dtype="mixed_bfloat16")
    found = layer({"small": tf.constant([1]), "large": tf.constant([1])})
    assert [values.dtype for values in found.values()] == [tf.bfloat16] * 2
    assert {variable.dtype for variable in layer.trainable_variables} == {tf.float32}


def test_configuration_goes_through_json():
    layer = PartialTPUEmbedding(features(a=5, b=6), "adam", size_threshold=5, table_update="engine", seed=2)
    again = PartialTPUEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert len(again.keras_embedding_layers) == 1

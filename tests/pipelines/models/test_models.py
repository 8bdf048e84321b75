import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import build_model, call_model
from pipelines.models.dropout import SeededDropout

CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="t", vocabulary_size=9, dim=4), TableConfig(name="u", vocabulary_size=5, dim=3)),
    features=(
        FeatureConfig(name="user", table="t"),
        FeatureConfig(name="item", table="t"),
        FeatureConfig(name="words", table="u", max_sequence_length=2),
    ),
)
EMBEDDINGS = {
    "item": tf.random.stateless_normal([6, 4], [1, 1]),
    "words": tf.random.stateless_normal([6, 2, 3], [1, 2]),
    "user": tf.random.stateless_normal([6, 4], [1, 3]),
}
DENSE = {"price": tf.random.stateless_normal([6, 1], [1, 4])}
TOWERS = {"query_features": ["user"], "candidate_features": ["item", "words", "price"]}


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("ranking", {}),
        ("ranking", {"hidden_units": [], "cross_layers": 0}),
        ("two_tower", TOWERS),
        ("two_tower", {**TOWERS, "hidden_units": [8], "width": 5}),
    ],
)
def test_model_gives_one_logit_per_row_and_a_gradient_to_every_activation(module, arguments):
    model = build_model(f"pipelines.models.{module}", CONFIG, DENSE, arguments)
    with tf.GradientTape() as tape:
        tape.watch(EMBEDDINGS)
        logits = call_model(model, EMBEDDINGS, DENSE, training=True)["label"]
    assert logits.shape == [6, 1]
    assert all(gradient is not None for gradient in tape.gradient(logits, EMBEDDINGS).values())


def test_dot_product_of_the_towers_is_the_logit():
    model = build_model("pipelines.models.two_tower", CONFIG, DENSE, {**TOWERS, "hidden_units": [8]})
    for variable in model.trainable_variables:
        variable.assign(tf.random.stateless_normal(variable.shape, [2, 2]))
    inputs = {**EMBEDDINGS, **DENSE}
    dots = tf.reduce_sum(model.query_vectors(inputs) * model.candidate_vectors(inputs), axis=1, keepdims=True)
    np.testing.assert_allclose(dots, call_model(model, EMBEDDINGS, DENSE)["label"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("query", [[], ["nobody"], ["item"]])
def test_towers_that_cannot_be_are_refused(query):
    with pytest.raises(ConfigError, match="query_features"):
        build_model("pipelines.models.two_tower", CONFIG, DENSE, {**TOWERS, "query_features": query})


def test_module_without_build_is_refused():
    with pytest.raises(ConfigError, match="has no function `build`"):
        build_model("json", CONFIG, [], {})


def test_dropout_continues_after_a_restore(tmp_path):
    x = tf.ones([4, 8])
    layer = SeededDropout(0.5, seed=3)
    layer(x, training=True)
    path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "c"))
    expected = layer(x, training=True)
    other = SeededDropout(0.5, seed=3)
    tf.train.Checkpoint(layer=other).read(path).assert_consumed()
    np.testing.assert_array_equal(other(x, training=True), expected)
    np.testing.assert_array_equal(other(x, training=False), x)


def test_dropout_inside_a_model_is_checkpointed_with_it():
    inputs = tf_keras.Input((4,))
    model = tf_keras.Model(inputs, SeededDropout(0.5)(inputs))
    assert [variable.shape for variable in model.non_trainable_variables] == [()]

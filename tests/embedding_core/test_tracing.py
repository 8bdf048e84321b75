"""AutoGraph converts the layers of users, but neither Keras' code nor this package's."""

import pytest
import tensorflow as tf
import tf_keras

from embedding_core import EmbeddingConfig
from embedding_core.tasks import POSITIVE
from embedding_core.tracing import as_written, calling_user_code
from embedding_core.training import Inputs
from embedding_core.training.training_inputs import RowParser
from tests.support.tf_examples import example


class _Doubled(tf_keras.layers.Layer):
    """A layer of a user, which works in a graph only if AutoGraph converts it."""

    def call(self, inputs):
        if tf.reduce_sum(inputs) > 0:
            return inputs * 2.0
        return inputs


@pytest.fixture
def model():
    inputs = tf_keras.Input((2,))
    return tf_keras.Model(inputs, tf_keras.layers.Activation("linear")(_Doubled()(inputs)))


def _converted(monkeypatch):
    """Records the functions that AutoGraph converts."""
    from tensorflow.python.autograph.impl import api

    names, convert = [], api._convert_actual

    def record(function, context):
        names.append(f"{function.__module__}.{function.__qualname__}")
        return convert(function, context)

    monkeypatch.setattr(api, "_convert_actual", record)
    return names


@pytest.mark.parametrize("in_strategy", [False, True])
def test_layer_of_a_user_is_converted_and_keras_is_not(model, monkeypatch, in_strategy):
    names = _converted(monkeypatch)

    def step(rows):
        return model(rows, training=True)

    @tf.function
    def run(rows):
        total = tf.zeros_like(rows)
        for _ in tf.range(2):
            total += tf.distribute.get_strategy().run(call, args=(rows,)) if in_strategy else call(rows)
        return total

    call = calling_user_code(step)
    assert run(tf.ones([1, 2])).numpy().tolist() == [[4.0, 4.0]]
    assert run(-tf.ones([1, 2])).numpy().tolist() == [[-2.0, -2.0]]
    assert [name for name in names if "_Doubled.call" in name]
    assert not [name for name in names if name.startswith("tf_keras") or ".step" in name]


def test_nothing_inside_a_function_as_written_is_converted(monkeypatch):
    names = _converted(monkeypatch)

    @as_written
    def parse(value):
        return tf.strings.to_number(value)

    assert list(tf.data.Dataset.from_tensors("1").map(parse).as_numpy_iterator()) == [1.0]
    assert names == []


def test_transform_of_a_user_may_need_autograph():
    """AutoGraph skips the parser, but converts the function that a user gives it."""

    def transform(raw):
        if tf.reduce_max(raw["x"]) > 1.0:
            return {"x": raw["x"] / 2.0}
        return {"x": raw["x"]}

    spec = {"x": tf.io.FixedLenFeature([], tf.float32)}
    inputs = Inputs(
        config=EmbeddingConfig(tables=(), features=()),
        vocabularies={},
        dense=("x",),
        tasks=(POSITIVE,),
        raw_spec=spec,
        transform=transform,
    )
    rows = [example({"x": value}) for value in (1.0, 4.0)]
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(1).map(RowParser(inputs))
    assert [batch["dense"]["x"].numpy().tolist() for batch in batches] == [[[1.0]], [[2.0]]]

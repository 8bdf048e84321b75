"""`needed_arguments` returns for each output the arguments that can change it."""

import tensorflow as tf

from components.transform_graph import needed_arguments

SCALAR = tf.TensorSpec([None], tf.float32)


@tf.function(autograph=False)
def _pair(first, second):
    return first + 1.0, second * 2.0


@tf.function(autograph=False)
def _nested(first, second, third):
    left, right = _pair(first, second)
    return left, right + third


def test_calls_are_followed_output_by_output():
    def function(columns):
        left, right = _nested(columns["a"], columns["b"], columns["c"])
        return {"left": left, "right": right, "all": left + right, "same": columns["c"], "none": tf.constant(1.0)}

    traced = tf.function(function, autograph=False).get_concrete_function(dict.fromkeys("abc", SCALAR))
    assert needed_arguments(traced) == {"left": {0}, "right": {1, 2}, "all": {0, 1, 2}, "same": {2}, "none": set()}


def test_composite_tensors_count_as_their_parts():
    specs = {"b": tf.SparseTensorSpec([None, None], tf.string), "a": SCALAR}

    def function(columns):
        return {"values": columns["b"].values, "whole": columns["b"], "a": columns["a"]}

    traced = tf.function(function, autograph=False).get_concrete_function(specs)
    assert needed_arguments(traced) == {"a": {0}, "values": {2}, "whole": {1, 2, 3}}


def test_control_flow_needs_all_its_inputs_but_no_captures():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), [2.0]), 0.0)

    def function(columns):
        chosen = tf.cond(tf.reduce_any(columns["a"] > 0), lambda: columns["b"], lambda: columns["b"] * 2)
        with tf.control_dependencies([columns["c"]]):
            looked_up = table.lookup(tf.cast(columns["a"], tf.int64))
        return {"chosen": chosen, "looked_up": looked_up}

    traced = tf.function(function, autograph=False).get_concrete_function(dict.fromkeys("abc", SCALAR))
    assert needed_arguments(traced) == {"chosen": {0, 1}, "looked_up": {0}}

"""Writes small versions, and makes requests for them."""

import numpy as np
import tensorflow as tf

from embedding_core.shadow.replay import Request


def save_version(folder, *, added=0.0, least=-1e9, output="rating", most=1000, by_row=True, above=-1e9):
    """Write a SavedModel whose signatures all return the price, float32 `[B]`, by default.

    Args:
      added: number that `priced` adds.
      least: `strict` refuses requests with a smaller value.
      output: name of the output of `named`.
      most: `small` refuses requests with more rows.
      above: `root` takes the square root of the distance to this number.
      by_row: whether `summed` has an answer for each row, not one for the whole request.
    """
    module = tf.Module()

    def priced(price, country):
        return {"score": price + added + 0.0 * tf.cast(tf.strings.length(country), tf.float32)}

    def strict(price):
        with tf.control_dependencies([tf.debugging.assert_greater_equal(price, least, message="too small a value")]):
            return {"score": tf.identity(price)}

    def small(price):
        with tf.control_dependencies([tf.debugging.assert_less_equal(tf.size(price), most, message="too many rows")]):
            return {"score": tf.identity(price)}

    def summed(price):
        return {"score": price if by_row else tf.reduce_sum(price)}

    def digested(price):
        digest = {"model_digest": tf.fill([tf.size(price)], "digest")} if by_row else {}
        return {"score": price, **digest}

    prices = tf.TensorSpec([None], tf.float32, "price")
    countries = tf.TensorSpec([None], tf.string, "country")

    def echo(price):
        return {"score": price}

    of_price = {
        "serving_default": echo,
        "fresh": echo,
        "strict": strict,
        "small": small,
        "summed": summed,
        "digested": digested,
        "root": lambda price: {"score": tf.sqrt(price - above)},
        "named": lambda price: {output: price},
    }
    signatures = {name: tf.function(function).get_concrete_function(prices) for name, function in of_price.items()}
    signatures["priced"] = tf.function(priced).get_concrete_function(prices, countries)
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return str(folder)


def request(number, signature="serving_default", **columns):
    """Make a request with the columns' values."""
    protos = {name: tf.make_tensor_proto(value).SerializeToString() for name, value in columns.items()}
    place = f"log, record {number}"
    return Request(place=place, model="m", kind="predict_log", signature=signature, inputs=protos)


def floats(*values):
    return np.array(values, np.float32)

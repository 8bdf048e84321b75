"""A model with mistakes that XLA for CPU accepts and the TPU compiler refuses; `kind` chooses one."""

import numpy as np
import tensorflow as tf
import tf_keras


def operation(x):
    return x + tf.cast(tf.bitcast(tf.cast(x, tf.float64), tf.int64), tf.float32)


def dtype(x):
    return x + tf.cast(tf.math.real(tf.signal.fft(tf.cast(x, tf.complex128))), tf.float32)


def shape(x):
    kept = tf.boolean_mask(x, x[:, 0] > 0)
    return x + tf.reduce_sum(tf.stop_gradient(tf.linalg.cholesky(tf.matmul(kept, kept, transpose_b=True))))


def activations(x):
    """Sort a matrix of rows x rows."""
    products = tf.stop_gradient(tf.matmul(x, x, transpose_b=True))
    return x + tf.reduce_sum(tf.sort(products, axis=0), 1, keepdims=True)


def constant(x):
    """Need the memory of `activations` and a constant of 256 MiB."""
    values = tf.constant(np.random.default_rng(0).random([1 << 20, 64], np.float32))
    return activations(x) + tf.gather(values, tf.cast(x[:, 0], tf.int32))[:, :4]


KINDS = {plant.__name__: plant for plant in (operation, dtype, shape, activations, constant)}


class Planted(tf_keras.layers.Layer):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def call(self, x):
        return KINDS[self.kind](x)


def build(config, embeddings, dense, *, kind):
    hidden = tf_keras.layers.Dense(4)(tf_keras.layers.Concatenate()([*embeddings.values(), *dense.values()]))
    return tf_keras.Model([dict(embeddings), dict(dense)], tf_keras.layers.Dense(1)(Planted(kind)(hidden)))

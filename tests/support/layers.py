"""Makes layers over one small table of ones, models around them, and their steps."""

import tensorflow as tf
import tf_keras

from embedding_core.engines import simulated_tpu
from embedding_core.layer import TPUEmbedding

tpu = tf.tpu.experimental.embedding


def table_of(rows=4, name="t"):
    return tpu.TableConfig(rows, 1, tf.constant_initializer(1.0), combiner="sum", name=name)


def layer_of(optimizer=None, update="engine", table=None, **arguments):
    """Make a layer whose feature 'f' is looked up in a table, which is `table_of()` if it is None."""
    feature = tpu.FeatureConfig(table or table_of())
    return TPUEmbedding({"f": feature}, optimizer, table_update=update, **arguments)


def on_two_cores(optimizer=None, **arguments):
    """Make a simulated TPU, and a layer on it."""
    strategy = simulated_tpu(hosts=1, cores_per_host=2)
    with strategy.scope():
        return strategy, layer_of(optimizer or tpu.SGD(0.5), "keras", **arguments)


def rows_of(layer):
    """Return the table's numbers."""
    tables = layer.table_variables or layer.embedding_tables
    return next(iter(tables.values())).numpy()[:, 0]


def slots_of(layer):
    """Return the numbers of the table and of its slots, by name."""
    return {key: variable.numpy()[:, 0] for key, variable in layer.table_variables.items()}


def gradient_step(layer, ids, scale=1.0):
    """Compute the gradient of the sum of the activations, which trains tables that the layer trains itself."""
    with tf.GradientTape() as tape:
        loss = scale * tf.reduce_sum(layer({"f": ids})["f"])
    return tape.gradient(loss, layer.trainable_variables)


def ids_of_cores(strategy, *parts):
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group], tf.int64)
    )


def on_cores(strategy, function):
    """Return a graph function that runs a function on every core."""
    return tf.function(lambda *given: strategy.run(function, args=given))


def functional_model(layer, optimizer="sgd", batch_size=None, **compiled):
    """Make a model whose output is the activation of dense ids."""
    inputs = {"f": tf_keras.Input(shape=(), batch_size=batch_size, dtype=tf.int64)}
    model = tf_keras.Model(inputs, layer(inputs)["f"])
    model.compile(optimizer, tf_keras.losses.MeanSquaredError(), **compiled)
    return model


def data_of(ids):
    """Return a dataset of ids whose labels are zeros."""
    return tf.data.Dataset.from_tensor_slices(({"f": tf.constant(ids, tf.int64)}, tf.zeros([len(ids), 1])))


class Subclassed(tf_keras.Model):
    """A model with a dense head of ones."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.head = tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def call(self, inputs):
        return self.head(self.layer(inputs)["f"])

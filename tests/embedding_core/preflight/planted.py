"""A model with mistakes that eager execution on a CPU does not show; `kind` chooses one."""

import tensorflow as tf
import tf_keras


class Texts(tf_keras.layers.Layer):
    def call(self, x):
        tf.print("sum", tf.reduce_sum(x))
        return tf.strings.to_number(tf.strings.as_string(x)) + x


class InsideFunction(tf_keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=())

    def call(self, x):
        @tf.function
        def scaled(x):
            return self.scale * tf.cond(
                tf.reduce_sum(x) > 0, lambda: tf.strings.to_number(tf.strings.as_string(x)), lambda: x
            )

        return scaled(x)


class Shapes(tf_keras.layers.Layer):
    def call(self, x):
        ids, _ = tf.unique(tf.reshape(tf.cast(x, tf.int32), [-1]))
        kept = tf.reduce_sum(tf.boolean_mask(x, x > 0))
        wide = tf.cast(tf.abs(tf.cast(x, tf.complex128)), tf.float32)
        return x + kept + wide + tf.cast(tf.size(ids), tf.float32)


class Values(tf_keras.layers.Layer):
    def call(self, x):
        return x + tf.reduce_sum(tf.zeros([tf.cast(tf.reduce_sum(x), tf.int32)]))


class Python(tf_keras.layers.Layer):
    def call(self, x):
        return x * tf.reduce_sum(x).numpy()


def build(config, embeddings, dense, *, kind):
    hidden = tf_keras.layers.Dense(4)(tf_keras.layers.Concatenate()([*embeddings.values(), *dense.values()]))
    layer = {"texts": Texts, "inside": InsideFunction, "shapes": Shapes, "values": Values, "python": Python}[kind]()
    return tf_keras.Model([dict(embeddings), dict(dense)], tf_keras.layers.Dense(1)(layer(hidden)))

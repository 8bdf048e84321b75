"""The workflow in the layer's documentation, on and off a TPU: configure, train, evaluate, checkpoint, serve.

Separate optimizers, and the loop over a subclassed model, are in test_on_tpu.py; learning rates by schedules in
test_engine_mode.py.
"""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.engines import simulated_tpu
from embedding_core.layer import TPUEmbedding
from tests.support.tf_examples import example

tpu = tf.tpu.experimental.embedding
BATCH = 4


def feature_config():
    """Return three features, two of which share a table."""
    table = tpu.TableConfig(vocabulary_size=5, dim=2, name="one")
    two = tpu.TableConfig(vocabulary_size=7, dim=3, name="two")
    return {
        "feature_one": tpu.FeatureConfig(table=table),
        "feature_two": tpu.FeatureConfig(table=table),
        "feature_three": tpu.FeatureConfig(table=two),
    }


def dataset(context):
    """Return batches of (labels, features), each for one replica."""
    size = context.get_per_replica_batch_size(BATCH)
    features = {
        "feature_one": tf.constant([1, 2, 3, 4], tf.int32),
        "feature_two": tf.ragged.constant([[1], [], [2, 2], [0, 4]], dtype=tf.int32),
        "feature_three": tf.constant([6, 0, 6, 1], tf.int32),
    }
    labels = tf.constant([[1.0], [0.0], [1.0], [0.0]])
    return tf.data.Dataset.from_tensor_slices((labels, features)).batch(size, drop_remainder=True).repeat()


@pytest.mark.parametrize("hosts", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_functional_model_from_configuration_to_serving(hosts, tmp_path):
    strategy = simulated_tpu(hosts=hosts, cores_per_host=2) if hosts else tf.distribute.get_strategy()
    with strategy.scope():
        count = tf.Variable(0, trainable=False, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        embedding_inputs = {
            "feature_one": tf_keras.Input(batch_size=BATCH, shape=(), dtype=tf.int32),
            "feature_two": tf_keras.Input(batch_size=BATCH, shape=(), dtype=tf.int32, ragged=True),
            "feature_three": tf_keras.Input(batch_size=BATCH, shape=(), dtype=tf.int32),
        }
        layer = TPUEmbedding(
            feature_config=feature_config(),
            optimizer=tpu.SGD(lambda: 0.1 / (1.0 + tf.cast(count, tf.float32))),
            table_update="engine",
        )
        embedding = layer(embedding_inputs)
        logits = tf_keras.layers.Dense(1, kernel_initializer="ones")(tf.concat(tf.nest.flatten(embedding), axis=1))
        model = tf_keras.Model(embedding_inputs, logits)
        optimizer = tf_keras.optimizers.Adam(0.1)
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    iterator = iter(strategy.distribute_datasets_from_function(dataset_fn=dataset, options=options))

    @tf.function
    def training_step(iterator, num_steps):
        def tpu_step(inputs):
            labels, features = inputs
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(features) - labels)) / BATCH
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            count.assign_add(1)

        for _ in tf.range(num_steps):
            strategy.run(tpu_step, args=(next(iterator),))

    @tf.function
    def evaluation_step(iterator):
        def tpu_step(inputs):
            labels, features = inputs
            return tf.reduce_sum(tf.square(model(features) - labels))

        return strategy.reduce("sum", strategy.run(tpu_step, args=(next(iterator),)), axis=None)

    before = evaluation_step(iterator)
    training_step(iterator, tf.constant(5))
    after = evaluation_step(iterator)
    assert after < before
    assert count.numpy() == 5

    path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "checkpoint"))
    assert any("two" in key for key, _ in tf.train.list_variables(path))

    parsed = {
        "feature_one": tf.io.FixedLenFeature([], tf.int64),
        "feature_two": tf.io.RaggedFeature(tf.int64),
        "feature_three": tf.io.FixedLenFeature([], tf.int64),
    }

    @tf.function(input_signature=[tf.TensorSpec(shape=[None], dtype=tf.string, name="examples")])
    def serve_examples(examples):
        return {"logits": model(tf.io.parse_example(examples, parsed))}

    tf.saved_model.save(model, str(tmp_path / "export"), signatures={"serving": serve_examples})
    served = tf.saved_model.load(str(tmp_path / "export")).signatures["serving"]
    rows = zip([1, 2, 3, 4], [[1], [], [2, 2], [0, 4]], [6, 0, 6, 1], strict=True)
    found = served(examples=tf.constant([example(dict(zip(parsed, row, strict=True))) for row in rows]))["logits"]
    assert float(tf.reduce_sum(tf.square(found - [[1.0], [0.0], [1.0], [0.0]]))) == pytest.approx(float(after), 1e-4)
    np.testing.assert_array_equal(found.shape, [4, 1])

"""The user's own functions for TFX's Transform and Trainer; they know nothing of this project."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
import tf_keras
from tfx_bsl.public import tfxio

DENSE = ("fare", "trip_miles")
LABEL = "big_tip"


def _filled(column: tf.Tensor | tf.SparseTensor) -> tf.Tensor:
    """Return the column as float32 [B, 1]; SchemaGen makes a column dense if no row lacks a value."""
    if isinstance(column, tf.SparseTensor):
        column = tf.sparse.to_dense(tf.SparseTensor(column.indices, column.values, [column.dense_shape[0], 1]))
    return tf.reshape(tf.cast(column, tf.float32), [-1, 1])


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
    """Return the dense features as z-scores, and whether the tip is above 20% of the fare; each [B, 1]."""
    filled = {name: _filled(inputs[name]) for name in (*DENSE, "tips")}
    outputs = {name: tft.scale_to_z_score(filled[name]) for name in DENSE}
    outputs[LABEL] = tf.cast(filled["tips"] > filled["fare"] * 0.2, tf.float32)
    return outputs


def run_fn(fn_args: Any) -> None:
    """Train a linear model on the dense features."""
    graph = tft.TFTransformOutput(fn_args.transform_output)
    options = tfxio.TensorFlowDatasetOptions(batch_size=256, label_key=LABEL)
    rows = fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, options, graph.transformed_metadata.schema)
    inputs = {name: tf_keras.Input((1,), name=name) for name in DENSE}
    outputs = tf_keras.layers.Dense(1, activation="sigmoid")(tf_keras.layers.Concatenate()(list(inputs.values())))
    model = tf_keras.Model(inputs, outputs)
    model.compile("adam", "binary_crossentropy")
    model.fit(rows.repeat(), steps_per_epoch=fn_args.train_steps, verbose=0)
    model.save(fn_args.serving_model_dir, save_format="tf")

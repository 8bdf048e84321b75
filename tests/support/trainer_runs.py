"""Runs EmbeddingTrainer on hand-made artifacts: raw columns, a schema, no Transform."""

import json

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.types import standard_artifacts

from components.trainer.executor import Executor
from embedding_core.planning.planner import plan_tables
from tests.support.artifacts import artifact, inputs_of
from tests.support.vocabularies import vocabulary_of

TRAINING = {
    "epochs": 3,
    "batch_size": 32,
    "dense_optimizer": {"learning_rate": 0.01},
    "early_stopping": None,
    "seed": 5,
}
SETTINGS = {"arguments": {"hidden_units": [8]}, "dense": ["price"]}
TRAINER = {
    "train_args": '{"splits": ["train"]}',
    "eval_args": '{"splits": ["eval"]}',
    "run_fn": "components.trainer.run.run_fn",
    "model_module": "pipelines.models.ranking",
}
VOCABULARY = vocabulary_of([b"a", b"b", b"c"], "item", total_count=30, distinct=4)


def rows_of(count, seed):
    """Make rows whose label follows from the item."""
    random = np.random.default_rng(seed)
    draws = zip(random.integers(4, size=count).tolist(), random.normal(size=count).tolist(), strict=True)
    return [{"item": b"abcd"[item : item + 1], "price": price, "label": item % 2} for item, price in draws]


def inputs_at(folder):
    """Return the artifacts that the trainer reads by input key."""
    config = plan_tables([{"name": "item", "column": {"name": "item"}, "vocabulary": "item"}], {"item": 3})
    made = inputs_of(folder, config, [VOCABULARY], train=rows_of(200, 1), eval=rows_of(100, 2))
    made["schema"] = artifact(standard_artifacts.Schema, folder / "schema")
    columns = {"item": schema_pb2.BYTES, "price": schema_pb2.FLOAT, "label": schema_pb2.INT}
    schema = schema_pb2.Schema(feature=[schema_pb2.Feature(name=name, type=kind) for name, kind in columns.items()])
    (folder / "schema" / "schema.pbtxt").write_text(text_format.MessageToString(schema))
    return {key: [value] for key, value in made.items()}


def run(inputs, folder, *, training=None, settings=None, **parameters):
    """Run the executor; return its outputs. `training` and `settings` replace those above, key by key."""
    outputs = {
        "model": [artifact(standard_artifacts.Model, folder / "model", made=False)],
        "model_run": [artifact(standard_artifacts.ModelRun, folder / "model_run", made=False)],
    }
    config = {**SETTINGS, "training": {**TRAINING, **(training or {})}, **(settings or {})}
    Executor().Do(inputs, outputs, {**TRAINER, "custom_config": json.dumps(config), **parameters})
    return outputs


def eval_rows(inputs):
    """Return the serialized rows of the eval split."""
    (path,) = tf.io.gfile.glob(f"{inputs['examples'][0].uri}/Split-eval/*")
    return tf.constant(list(tf.data.TFRecordDataset(path, "GZIP").as_numpy_iterator()))

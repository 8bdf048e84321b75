"""Builds the signatures of an exported model.

=====================  ==========================================  ==========================================
signature              inputs                                      outputs
=====================  ==========================================  ==========================================
`serving_default`      examples: serialized tf.Examples `[B]`      `served_outputs` of the tasks
`raw`                  one tensor per raw column (`raw_columns`)   the same
`embeddings`           examples                                    per feature `[B, dim]` or `[B, L, dim]`
`query`                tensors of the query's raw columns          vector `[B, n]`
`candidate`            tensors of the candidate's raw columns      vector `[B, n]`
`top_k`                as `query`                                  tokens, scores `[B, k]`, best first
`top_k_filtered`       as `query`; exclude, among: tokens `[B, n]` the same
`counters`             none                                        features, dropped_ids `[n]`: since it was loaded
`transform_features`   examples                                    the dense inputs `[B, 1]`
`transform_labels`     examples                                    the labels, and the weight, `[B, 1]`
=====================  ==========================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf
import tf_keras

from embedding_core.columns.raw_columns import Columns, DenseInputs, RawColumns
from embedding_core.model_inputs import call_model
from embedding_core.serving.serving_module import ServingModule
from embedding_core.task_outputs import served_outputs
from embedding_core.tasks import Task
from embedding_core.tracing import calling_user_code

Outputs: TypeAlias = dict[str, tf.Tensor]
Vectors: TypeAlias = Callable[[Mapping[str, tf.Tensor]], tf.Tensor]
Signature: TypeAlias = tf.types.experimental.ConcreteFunction


def signature_of_examples(function: Callable[[tf.Tensor], Outputs]) -> Signature:
    """Make a signature that takes serialized tf.Examples."""

    def compute(examples: tf.Tensor) -> Outputs:
        return calling_user_code(function)(examples)

    return tf.function(compute).get_concrete_function(examples=tf.TensorSpec([None], tf.string, "examples"))


def signature_of_tensors(
    function: Callable[[Mapping[str, tf.Tensor]], Outputs], specs: Mapping[str, tf.TensorSpec]
) -> Signature:
    """Make a signature that takes named tensors, such as one per raw column (`Columns.named_specs`)."""

    def compute(**named: tf.Tensor) -> Outputs:
        return calling_user_code(function)(named)

    return tf.function(compute).get_concrete_function(**specs)


def predictions(
    module: ServingModule, model: tf_keras.Model, tasks: Sequence[Task], raw: RawColumns, features: Iterable[str]
) -> Outputs:
    """Compute the served outputs of all tasks; numbers are NaN if a row lacks what the transform requires."""
    embeddings, dense = module.inputs_of(raw, features)
    outputs = call_model(model, embeddings, dense, tasks)
    return served_outputs(tasks, {name: _where_complete(raw, output) for name, output in outputs.items()})


def _where_complete(raw: RawColumns, output: tf.Tensor) -> tf.Tensor:
    """Replace the rows of `[B, n]` that lack what the transform requires by NaN."""
    if raw.incomplete is None:
        return output
    return tf.where(raw.incomplete[:, tf.newaxis], tf.constant(float("nan"), output.dtype), output)


def serving_default(module: ServingModule, model: tf_keras.Model, tasks: Sequence[Task]) -> Signature:
    """Make the signature serialized tf.Examples -> served outputs."""
    features = [feature.name for feature in module.config.features]
    columns = module.columns(features)

    def compute(examples: tf.Tensor) -> Outputs:
        return predictions(module, model, tasks, columns.parse(examples), features)

    return signature_of_examples(compute)


def raw_signature(module: ServingModule, model: tf_keras.Model, tasks: Sequence[Task]) -> Signature:
    """Make the signature named tensors -> served outputs; no external proto reaches TensorFlow's parser."""
    features = [feature.name for feature in module.config.features]
    columns = module.columns(features)

    def compute(named: Mapping[str, tf.Tensor]) -> Outputs:
        return predictions(module, model, tasks, columns.accept(named), features)

    return signature_of_tensors(compute, columns.named_specs)


def embeddings_signature(module: ServingModule) -> Signature:
    """Make the signature serialized tf.Examples -> activations by feature."""
    features = [feature.name for feature in module.config.features]
    columns = module.columns(features, dense=False)
    return signature_of_examples(lambda examples: module.inputs_of(columns.parse(examples), features)[0])


def raw_embeddings_signature(module: ServingModule) -> Signature:
    """Make the signature named tensors -> activations by feature."""
    features = [feature.name for feature in module.config.features]
    columns = module.columns(features, dense=False)
    return signature_of_tensors(lambda named: module.inputs_of(columns.accept(named), features)[0], columns.named_specs)


def counters(module: ServingModule) -> Signature:
    """Make the signature that returns, by feature, how many invalid ids were dropped since the model was loaded."""
    names = tf.constant(module.counted)
    return tf.function(lambda: {"features": names, "dropped_ids": module.dropped.read_value()}).get_concrete_function()


def vectors(
    module: ServingModule, tower: Callable[[Outputs], tf.Tensor], names: Iterable[str]
) -> tuple[Vectors, Columns]:
    """Make a function from named tensors to the vectors of one tower; return it and the columns that it reads."""
    known = {feature.name for feature in module.config.features}
    features = [name for name in names if name in known]
    columns = module.columns(features, dense=any(name not in known for name in names))

    def compute(named: Mapping[str, tf.Tensor]) -> tf.Tensor:
        raw = columns.accept(named)
        embeddings, dense = module.inputs_of(raw, features)
        return _where_complete(raw, tower({**dense, **embeddings}))

    return compute, columns


def transform_signature(inputs: DenseInputs) -> Signature:
    """Make the signature serialized tf.Examples -> outputs of a transform, float32 `[B, 1]` by name."""
    columns = Columns((), inputs.spec)

    def compute(examples: tf.Tensor) -> Outputs:
        return inputs.values(inputs.outputs(columns.parse(examples).dense))

    return signature_of_examples(compute)

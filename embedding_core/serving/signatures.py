"""Builds the signatures of an exported model, and those that only a two-tower model has.

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

from embedding_core.columns import Columns, DenseInputs, RawColumns
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import call_model, served_outputs
from embedding_core.serving.candidate_search import CandidateIndex
from embedding_core.serving.serving_module import ServingModule
from embedding_core.tasks import Task
from embedding_core.top_k_config import TopK
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


# Builds the signatures of a two-tower model: vectors of both towers, and the top k candidates of a query.

FILTERS = ("exclude", "among")
"""The inputs of `top_k_filtered` besides those of the query: string `[B, n]`, padded with ""."""


def two_tower_signatures(
    module: ServingModule, model: tf_keras.Model, vocabularies: Mapping[str, str], settings: TopK
) -> dict[str, Signature]:
    """Make `query`, `candidate` and, if each candidate is one token of one feature, `top_k` and `top_k_filtered`.

    Raises:
      ConfigError: a column of the query has the name of an input of `top_k_filtered`.
    """
    query, query_columns = vectors(module, model.query_vectors, model.query_features)
    candidate, candidate_columns = vectors(module, model.candidate_vectors, model.candidate_features)
    specs = query_columns.named_specs
    signatures = {
        "query": signature_of_tensors(lambda named: {"vector": query(named)}, specs),
        "candidate": signature_of_tensors(lambda named: {"vector": candidate(named)}, candidate_columns.named_specs),
    }
    index = CandidateIndex.of(module, model, vocabularies, settings)
    if index is not None:
        module.candidates = index
        signatures["top_k"] = signature_of_tensors(lambda named: index.top(query(named)), specs)
        signatures["top_k_filtered"] = signature_of_tensors(
            lambda named: index.top_filtered(query(named), *(named[name] for name in FILTERS)),
            {**specs, **_filters(query_columns)},
        )
    return signatures


def _filters(columns: Columns) -> dict[str, tf.TensorSpec]:
    for name in FILTERS:
        if name in columns.inputs:
            raise ConfigError(
                f"column {columns.inputs[name]!r} of the query would be the input {name!r}, which is a filter of the "
                "signature `top_k_filtered`: rename the column."
            )
    return {name: tf.TensorSpec([None, None], tf.string, name) for name in FILTERS}

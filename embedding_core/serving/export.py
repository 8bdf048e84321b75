"""Exports a trained model, or the tables of an embedding checkpoint alone, as a SavedModel.

Builds the signatures of an exported model, and those that only a two-tower model has.

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

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf
import tf_keras

from embedding_core.checkpoint import BundleReader, verify
from embedding_core.checkpoint.checkpoint_manifest import BUNDLE, VOCABULARIES
from embedding_core.columns import Columns, DenseInputs, RawColumns
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError, nearest
from embedding_core.model_inputs import call_model, is_two_tower, served_outputs
from embedding_core.serving.candidate_search import CandidateIndex
from embedding_core.serving.serving_module import ExportForm, ServingModule
from embedding_core.serving.table_blocks import TableRows, require_model_inputs, require_no_lambda
from embedding_core.serving_config import RowsDtypes, TopK
from embedding_core.storage import whole_folder
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


def export_model(
    destination: str | os.PathLike[str],
    *,
    config: EmbeddingConfig,
    tables: Mapping[str, TableRows],
    vocabularies: Mapping[str, str | os.PathLike[str]],
    model: tf_keras.Model,
    dense: DenseInputs | None = None,
    labels: DenseInputs | None = None,
    tasks: Sequence[Task] = (Task(),),
    signatures: Collection[str] | None = None,
    top_k: TopK | None = None,
    rows_dtype: RowsDtypes = "float32",
    form: ExportForm | None = None,
) -> tuple[str, ...]:
    """Write a SavedModel that looks up on CPU and loads with TensorFlow alone.

    It holds the tables without slots, the vocabularies as assets, the dense part and its transform, and computes with
    the functions that training uses.

    Args:
      destination: folder to write; it must be absent or empty.
      config: tables and features.
      tables: float32 `[rows, dim]` by table name or TableConfig: variables or arrays of any engine, whole or in blocks
        of consecutive rows (TensorFlow's ShardedVariable).
      vocabularies: path of the plain token file by vocabulary name.
      model: the dense part, made by `model_inputs.build_model`.
      dense: source of dense inputs and of columns `after_transform`; None if there are none.
      labels: source of labels and weight; adds the signatures `transform_labels` and, if there are dense inputs,
        `transform_features`, which TFX's Evaluator needs. None adds neither.
      tasks: what the model is trained for; the tasks name the outputs of the signatures.
      signatures: names of the signatures to write besides `serving_default`; None for all that the model can have.
      top_k: how many candidates `top_k` and `top_k_filtered` return, and how they are searched; None for the best
        100, by exact search.
      rows_dtype: type of the served rows, or types by table, the others being float32. "float16" halves a table, whose
        values are rounded to 11 significant bits; "int8" stores a row of n values in n + 8 bytes.
      form: what the model has besides; None for `ExportForm()`, which adds nothing.

    Returns:
      The names of the signatures written.

    Raises:
      CheckpointError: the tables are not those of the configuration, or a table or the model holds NaN or infinity.
      VocabularyError: a vocabulary is missing or has another size.
      ConfigError: the destination is not empty, a signature or a type or table of `rows_dtype` is unknown, an input
        has no source, the model has a Lambda layer, or `form` refuses it.
    """
    path = os.fspath(destination)
    if tf.io.gfile.exists(path) and tf.io.gfile.listdir(path):
        raise ConfigError(f"`destination` is {path!r}, which is not empty: pass a new folder.")
    require_model_inputs(model, config, dense)
    require_no_lambda(model)
    files = {name: os.fspath(file) for name, file in vocabularies.items()}
    form = form or ExportForm()
    module = ServingModule(config, tables, files, dense, rows_dtype, form)
    module.hold(model)
    possible = _signatures(module, model, tasks, files, labels, top_k or TopK())
    chosen = set(possible if signatures is None else {"serving_default", *signatures})
    unknown = sorted(chosen - set(possible))
    if unknown:
        raise ConfigError(f"unknown signature {unknown[0]!r}; this model can have: {', '.join(possible)}.")
    written: Mapping[str, Signature] = {name: function for name, function in possible.items() if name in chosen}
    written = form.signatures(module, written, files)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, path, signatures=written, options=options)
    form.save(module, path)
    return tuple(written)


def _signatures(
    module: ServingModule,
    model: tf_keras.Model,
    tasks: Sequence[Task],
    files: Mapping[str, str],
    labels: DenseInputs | None,
    top_k: TopK,
) -> dict[str, Signature]:
    signatures = {
        "serving_default": serving_default(module, model, tasks),
        "raw": raw_signature(module, model, tasks),
        "embeddings": embeddings_signature(module),
    }
    if module.counted:
        signatures["counters"] = counters(module)
    if is_two_tower(model):
        signatures |= two_tower_signatures(module, model, files, top_k)
    if labels is not None:
        module.label_transform = labels.tracked
        signatures["transform_labels"] = transform_signature(labels)
        if module.dense is not None and module.dense.names:
            signatures["transform_features"] = transform_signature(module.dense)
    return signatures


# Exports the tables of an embedding checkpoint as a SavedModel, without model, slots or TPU.


def export_embeddings(
    checkpoint: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    features: Collection[str] | None = None,
    rows_dtype: RowsDtypes = "float32",
) -> tuple[str, ...]:
    """Write a SavedModel that returns the vectors of features, with the same lookup as in `export_model`.

    Args:
      checkpoint: folder of an embedding checkpoint, written by `checkpoint.retrieve` or `checkpoint.remap` from
        any engine.
      destination: folder to write; it must be absent or empty. It appears whole or not at all.
      features: names of the features; None for all of the checkpoint's.
      rows_dtype: type of the served rows, or types by table, as in `export_model`.

    Returns:
      The names of the signatures: `serving_default` (serialized tf.Examples -> a vector per feature), `raw` (the same
      from named tensors), and `counters` if ids can be invalid.

    Raises:
      CheckpointError: the checkpoint is damaged, the destination is not empty, or rows are not finite.
      ConfigError: a feature, or a type or table of `rows_dtype`, is unknown; a feature is made by a transform, which a
        checkpoint does not hold; or `features` is empty.
    """
    folder = os.fspath(checkpoint)
    config = _chosen(verify(folder).config, features)
    reader = BundleReader(os.path.join(folder, BUNDLE))
    tables = {table.name: _table(reader, table.name, (table.vocabulary_size, table.dim)) for table in config.tables}
    names = {table.vocabulary for table in config.tables if table.vocabulary is not None}
    files = {name: os.path.join(folder, VOCABULARIES, f"{name}.txt") for name in names}
    module = ServingModule(config, tables, files, None, rows_dtype)
    del tables
    signatures = {"serving_default": embeddings_signature(module), "raw": raw_embeddings_signature(module)}
    if module.counted:
        signatures["counters"] = counters(module)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with whole_folder(os.fspath(destination)) as place:
        tf.saved_model.save(module, place, signatures=signatures, options=options)
    return tuple(signatures)


def _chosen(config: EmbeddingConfig, features: Collection[str] | None) -> EmbeddingConfig:
    known = [feature.name for feature in config.features]
    for name in features or ():
        if name not in known:
            raise ConfigError(f"feature {name!r} is not in the checkpoint: {nearest(name, known)}")
    chosen = config.of_features(name for name in known if features is None or name in set(features))
    made = [
        feature.name for feature in chosen.features if feature.column is not None and feature.column.after_transform
    ]
    if made:
        raise ConfigError(
            f"feature {made[0]!r} is made by a transform, which a checkpoint does not hold: name the other "
            "features, or export the model with `export_model`."
        )
    if not chosen.features:
        raise ConfigError(f"`features` is {features!r}: name at least one feature of the checkpoint.")
    return chosen


def _table(reader: BundleReader, name: str, shape: tuple[int, int]) -> tf.Variable:
    """Read a table slice by slice into a variable, so that only one copy of it is in memory."""
    rows = tf.Variable(tf.zeros(shape), trainable=False)
    for start, part in reader.slices(name):
        rows.scatter_update(tf.IndexedSlices(tf.constant(part), tf.range(start, start + len(part), dtype=tf.int64)))
    return rows

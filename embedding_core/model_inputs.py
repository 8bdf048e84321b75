"""Builds and calls the dense part of a model: its inputs are activations and dense features.

A user's ``build(config, embeddings, dense, **arguments)`` makes a model. It gets one Keras input per feature and
returns a functional `tf_keras.Model` of these inputs. The output is `[B, 1]`, a logit if the label is binary, or
`[B, classes]`, a logit for each class of a multiclass label. If there are several tasks, the model returns a mapping of
such outputs by the name of the task.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.tasks import Task

ModelInputs: TypeAlias = "tuple[dict[str, Any], dict[str, Any]]"

_EMBEDDING, _DENSE, _LENGTH = "embedding_", "dense_", "/length"
_TASKS, _LENGTHS = "tasks", "lengths"  # arguments of `build`


def model_inputs(config: EmbeddingConfig, dense: Iterable[str]) -> ModelInputs:
    """Make Keras inputs: per feature `[B, dim]` (or `[B, L, dim]` for a sequence), per dense feature `[B, 1]`."""
    embeddings = {}
    for feature in config.features:
        length, dim = feature.max_sequence_length, config.table_of(feature.name).dim
        shape = (length, dim) if length else (dim,)
        embeddings[feature.name] = tf_keras.Input(shape, name=_EMBEDDING + feature.name)
    return embeddings, {name: tf_keras.Input((1,), name=_DENSE + name) for name in dense}


def length_name(feature: str) -> str:
    """Return the name of the dense input that holds the lengths of a sequence feature."""
    return feature + _LENGTH


def sequence_lengths(config: EmbeddingConfig, ids: Mapping[str, tf.RaggedTensor]) -> dict[str, tf.Tensor]:
    """Count the ids of each row of the sequence features, at most `max_sequence_length`.

    Args:
      config: tables and features.
      ids: ragged `[B, None]` by feature; features that are absent are left out.

    Returns:
      float32 `[B, 1]` by `length_name`.
    """
    return {
        length_name(feature.name): length_of(ids[feature.name], feature.max_sequence_length)
        for feature in config.features
        if feature.max_sequence_length and feature.name in ids
    }


def length_of(ids: tf.RaggedTensor, longest: int) -> tf.Tensor:
    """Count the ids of each row, at most `longest`: float32 `[B, 1]`."""
    return tf.cast(tf.minimum(ids.row_lengths(), longest), tf.float32)[:, tf.newaxis]


def _load_build(module: str) -> Callable[..., tf_keras.Model]:
    build = getattr(importlib.import_module(module), "build", None)
    if not callable(build):
        raise ConfigError(f"model {module!r} has no function `build`: write `build(config, embeddings, dense)` in it.")
    return cast(Callable[..., tf_keras.Model], build)


def build_model(
    module: str,
    config: EmbeddingConfig,
    dense: Iterable[str],
    arguments: Mapping[str, Any],
    tasks: Sequence[Task] = (Task(),),
) -> tf_keras.Model:
    """Build the model that a module describes.

    Args:
      module: dotted name of a module with `build(config, embeddings, dense, **arguments)`.
      config: tables and features; each feature is an input.
      dense: names of the dense features.
      arguments: keyword arguments of `build`.
      tasks: what the model is trained for. An argument `tasks` of `build` gets the width of each task's output by name:
        1, or the number of classes. An argument `lengths` gets one input `[B, 1]` per sequence feature: the number of
        filled positions.

    Raises:
      ConfigError: the module has no `build`, or `build` did not return an output `[B, width]` for each task.
    """
    embeddings, dense_inputs = model_inputs(config, dense)
    build, widths = _load_build(module), {task.name: task.width for task in tasks}
    parameters = inspect.signature(build).parameters
    given: dict[str, Any] = {_TASKS: widths} if _TASKS in parameters else {}
    if _LENGTHS in parameters:
        sequences = [feature.name for feature in config.features if feature.max_sequence_length]
        given[_LENGTHS] = {name: tf_keras.Input((1,), name=_DENSE + length_name(name)) for name in sequences}
    model = build(config, embeddings, dense_inputs, **arguments, **given)
    shape = getattr(model, "output_shape", None)
    by_task = {tasks[0].name: shape} if len(tasks) == 1 and not isinstance(shape, dict) else shape
    if by_task != {name: (None, width) for name, width in widths.items()}:
        several = ", ".join(f"{name} (None, {width})" for name, width in widths.items())
        wanted = f"output has the shape (None, {tasks[0].width})"
        wanted = wanted if len(tasks) == 1 else f"outputs are a mapping by task, with the shapes {several}"
        raise ConfigError(
            f"`build` of model {module!r} returned {type(model).__name__} with output shape {shape!r}: "
            f"it must return a functional tf_keras.Model whose {wanted}."
        )
    return model


def is_two_tower(model: tf_keras.Model) -> bool:
    """Return whether the model has a query tower and a candidate tower."""
    return not _missing_of_towers(model)


def _missing_of_towers(model: tf_keras.Model) -> list[str]:
    wanted = ("query_features", "candidate_features", "query_vectors", "candidate_vectors")
    return [name for name in wanted if not hasattr(model, name)]


def check_two_tower(model: tf_keras.Model, module: str) -> None:
    """Raise a ConfigError if the model of `module` lacks an attribute of a two-tower model that softmax needs."""
    missing = _missing_of_towers(model)
    if missing:
        raise ConfigError(
            f"`training.softmax` is given, but the model of {module!r} has no {' and no '.join(missing)}: return a "
            "`TwoTower` of pipelines.models.two_tower from `build`, and set its features and towers."
        )


def token_candidate(model: tf_keras.Model, config: EmbeddingConfig) -> str | None:
    """Return the feature whose tokens are the candidates of a two-tower model; None if there is none.

    The feature is the only input of the candidate tower, is not a sequence, and has a vocabulary with tokens.
    """
    names = tuple(model.candidate_features)
    known = {feature.name: feature for feature in config.features}
    if len(names) != 1 or names[0] not in known or known[names[0]].max_sequence_length:
        return None
    table = config.table_of(names[0])
    return None if table.vocabulary is None or table.vocabulary_size == table.oov_rows else str(names[0])


def tower_vectors(
    model: tf_keras.Model, inputs: Mapping[str, tf.Tensor], *, training: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute the query vectors and the candidate vectors `[B, n]` of a two-tower model.

    Args:
      model: the model.
      inputs: activations and dense features by name.
      training: passed on to `query_vectors` and `candidate_vectors` if they have such an argument.
    """
    towers = (model.query_vectors, model.candidate_vectors)
    queries, candidates = (
        tower(inputs, training=training) if "training" in inspect.signature(tower).parameters else tower(inputs)
        for tower in towers
    )
    return queries, candidates


def call_model(
    model: tf_keras.Model,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    tasks: Sequence[Task] = (Task(),),
    *,
    training: bool = False,
) -> dict[str, tf.Tensor]:
    """Compute the outputs of a model made by `build_model`, however its `build` nested the inputs.

    Args:
      model: the model.
      embeddings: activations by feature name.
      dense: float32 `[B, 1]` by name, including the lengths of sequences by `length_name`.
      tasks: the model's tasks.
      training: whether layers such as dropout are active.

    Returns:
      `[B, 1]` by the name of the task: a logit, a number, or the logarithm of an expected count; for a
      multiclass task `[B, classes]` logits.
    """
    given = {_EMBEDDING + name: value for name, value in embeddings.items()}
    given.update({_DENSE + name: value for name, value in dense.items()})
    output = model([given[name] for name in model.input_names], training=training)
    return output if isinstance(output, dict) else {tasks[0].name: output}

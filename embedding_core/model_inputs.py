"""Builds and calls the dense part of a model: its inputs are activations and dense features.

A model is made by a user's ``build(config, embeddings, dense, **arguments)``, which gets one Keras
input per feature and returns a functional `tf_keras.Model` from those inputs to an output `[B, 1]`: a logit if the
label is binary. If there are several tasks, it returns a mapping of such outputs by the name of the task.
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

_EMBEDDING, _DENSE = "embedding_", "dense_"
_TASKS = "tasks"  # argument of `build`


def model_inputs(config: EmbeddingConfig, dense: Iterable[str]) -> ModelInputs:
    """Make Keras inputs: per feature `[B, dim]` (or `[B, L, dim]` for a sequence), per dense feature `[B, 1]`."""
    embeddings = {}
    for feature in config.features:
        length, dim = feature.max_sequence_length, config.table_of(feature.name).dim
        shape = (length, dim) if length else (dim,)
        embeddings[feature.name] = tf_keras.Input(shape, name=_EMBEDDING + feature.name)
    return embeddings, {name: tf_keras.Input((1,), name=_DENSE + name) for name in dense}


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
      config: tables and features; one input each.
      dense: names of the dense features.
      arguments: keyword arguments of `build`.
      tasks: what the model is trained for; `build` gets their names as `tasks` if it has such an argument.

    Raises:
      ConfigError: the module has no `build`, or `build` did not return one output `[B, 1]` for each task.
    """
    embeddings, dense_inputs = model_inputs(config, dense)
    build, names = _load_build(module), [task.name for task in tasks]
    takes_tasks = _TASKS in inspect.signature(build).parameters
    model = build(config, embeddings, dense_inputs, **arguments, **({_TASKS: names} if takes_tasks else {}))
    shape = getattr(model, "output_shape", None)
    by_task = {names[0]: shape} if len(names) == 1 and not isinstance(shape, dict) else shape
    if by_task != dict.fromkeys(names, (None, 1)):
        wanted = "(None, 1)" if len(names) == 1 else f"(None, 1) for each of the tasks {', '.join(names)}, in a mapping"
        raise ConfigError(
            f"`build` of model {module!r} returned {type(model).__name__} with output shape {shape!r}: "
            f"it must return a functional tf_keras.Model whose output has the shape {wanted}."
        )
    return model


def is_two_tower(model: tf_keras.Model) -> bool:
    """Return whether the model has a query tower and a candidate tower."""
    wanted = ("query_features", "candidate_features", "query_vectors", "candidate_vectors")
    return all(hasattr(model, name) for name in wanted)


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
      dense: float32 `[B, 1]` by name.
      tasks: the model's tasks.
      training: whether layers such as dropout are active.

    Returns:
      `[B, 1]` by the name of the task: a logit, a number, or the logarithm of an expected count.
    """
    given = {_EMBEDDING + name: value for name, value in embeddings.items()}
    given.update({_DENSE + name: value for name, value in dense.items()})
    output = model([given[name] for name in model.input_names], training=training)
    return output if isinstance(output, dict) else {tasks[0].name: output}

"""Builds and calls the dense part of a model: activations and dense features in, losses and served outputs out.

A user's ``build(config, embeddings, dense, **arguments)`` makes a model. It gets one Keras input per feature and
returns a functional `tf_keras.Model` of these inputs. The output is `[B, 1]`, a logit if the label is binary, or
`[B, classes]`, a logit for each class of a multiclass label. If there are several tasks, the model returns a mapping of
such outputs by the name of the task.

A module that imports Keras 3 (`keras`), and nothing of tf_keras, gets inputs of Keras 3 and returns a model of Keras 3.
It becomes a layer of a tf_keras model, so that training, checkpoints and exports know one Keras.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias, cast

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.tasks import CLASSES, LOGIT, Task, prediction_name, served_name
from embedding_core.tracing import as_written

ModelInputs: TypeAlias = "tuple[dict[str, Any], dict[str, Any]]"

_EMBEDDING, _DENSE, _LENGTH = "embedding_", "dense_", "/length"
_TASKS, _LENGTHS = "tasks", "lengths"  # arguments of `build`


def model_inputs(config: EmbeddingConfig, dense: Iterable[str], keras: Any = tf_keras) -> ModelInputs:
    """Make Keras inputs: per feature `[B, dim]` (or `[B, L, dim]` for a sequence), per dense feature `[B, 1]`."""
    embeddings = {}
    for feature in config.features:
        length, dim = feature.max_sequence_length, config.table_of(feature.name).dim
        shape = (length, dim) if length else (dim,)
        embeddings[feature.name] = keras.Input(shape, name=_EMBEDDING + feature.name)
    return embeddings, {name: keras.Input((1,), name=_DENSE + name) for name in dense}


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


def _package_of(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] if sys.modules.get(value.__name__) is value else ""  # not a lazy loader
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _keras_of(module: str) -> Any:
    """Return the Keras that a module imports: Keras 3 if it imports this alone, else tf_keras."""
    packages = {_package_of(value) for value in vars(sys.modules[module]).values()}
    return sys.modules["keras"] if "keras" in packages and "tf_keras" not in packages else tf_keras


class _ModelOfKeras3(tf_keras.layers.Layer):
    """A functional model of Keras 3 as a layer; its inputs are a list, in the order of `model.inputs`."""

    def __init__(self, model: Any) -> None:
        super().__init__(name=model.name, autocast=False)
        names = {tensor.name: at for at, tensor in enumerate(model.inputs)}
        keras = sys.modules["keras"]
        places = keras.tree.map_structure(lambda tensor: names[tensor.name], model.input)
        # Hold the model in closures: TensorFlow does not track functions, so a checkpoint contains only `_saved`.
        self._call: Callable[..., Any] = lambda inputs, training: model(
            keras.tree.map_structure(lambda at: inputs[at], places), training=training
        )
        self._of_model: Callable[[str], Any] = lambda name: getattr(model, name)
        self._saved = [variable.value for variable in model.variables]

    @property
    def trainable_weights(self) -> list[tf.Variable]:
        return [variable.value for variable in self._of_model("trainable_variables")]

    @property
    def non_trainable_weights(self) -> list[tf.Variable]:
        return [variable.value for variable in self._of_model("non_trainable_variables")]

    @as_written
    def call(self, inputs: Sequence[tf.Tensor], training: bool = False) -> Any:
        """Call the model, and add its losses, such as those of regularizers."""
        output = self._call(inputs, training)
        self.add_loss(self._of_model("losses"))
        return output


def _as_tf_keras(model: Any) -> tf_keras.Model:
    inputs = [tf_keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name) for tensor in model.inputs]
    return tf_keras.Model(inputs, _ModelOfKeras3(model)(inputs))


def _built(build: Callable[[], Any], module: str, keras: Any) -> Any:
    """Call `build`; raise a ConfigError if it mixes Keras 3 and tf_keras."""
    try:
        return build()
    except (AttributeError, TypeError, ValueError) as error:
        other = "tf_keras" if keras is not tf_keras else "keras"
        frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
        if not any(name.partition(".")[0] == other for name in frames):
            raise
        raise ConfigError(
            f"`build` of model {module!r} gives inputs of {keras.__name__} to layers of {other}: use one Keras, and "
            "import it at the top of the module; `keras` without `tf_keras` there means Keras 3."
        ) from error


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
      ConfigError: the module has no `build`, `build` did not return an output `[B, width]` for each task, added an
        input of its own, or mixes tf_keras and Keras 3.
    """
    build, widths = _load_build(module), {task.name: task.width for task in tasks}
    keras = _keras_of(module)
    embeddings, dense_inputs = model_inputs(config, dense, keras)
    parameters = inspect.signature(build).parameters
    given: dict[str, Any] = {_TASKS: widths} if _TASKS in parameters else {}
    if _LENGTHS in parameters:
        sequences = [feature.name for feature in config.features if feature.max_sequence_length]
        given[_LENGTHS] = {name: keras.Input((1,), name=_DENSE + length_name(name)) for name in sequences}
    model = _built(lambda: build(config, embeddings, dense_inputs, **arguments, **given), module, keras)
    if keras is not tf_keras and isinstance(model, keras.Model) and getattr(model, "inputs", None):
        model = _as_tf_keras(model)
    shape = getattr(model, "output_shape", None)
    by_task = {tasks[0].name: shape} if len(tasks) == 1 and not isinstance(shape, dict) else shape
    if by_task != {name: (None, width) for name, width in widths.items()}:
        several = ", ".join(f"{name} (None, {width})" for name, width in widths.items())
        wanted = f"output has the shape (None, {tasks[0].width})"
        wanted = wanted if len(tasks) == 1 else f"outputs are a mapping by task, with the shapes {several}"
        raise ConfigError(
            f"`build` of model {module!r} returned {type(model).__name__} with output shape {shape!r}: "
            f"it must return a functional {keras.__name__}.Model whose {wanted}."
        )
    known = {_EMBEDDING + feature.name for feature in config.features}
    known |= {_DENSE + name for name in (*dense_inputs, *map(length_name, given.get(_LENGTHS, ())))}
    if unknown := sorted(set(model.input_names) - known):
        raise ConfigError(
            f"`build` of model {module!r} returned a model with the inputs {unknown}: it must compute its output from "
            "`embeddings`, `dense` and `lengths` alone; list a column among the `features` instead of adding an Input."
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


# Computes the losses and the served outputs of tasks from the outputs of the model.


def row_losses(task: Task, label: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Compute the loss of each row.

    Args:
      task: what the label is.
      label: `[B, 1]`, for a multiclass task the position of the class; NaN for a row without this label: its loss is 0.
      output: `[B, 1]`, what the model computes for the task: a logit, a number, or the logarithm of an expected count;
        of a multiclass task `[B, classes]`, a logit for each class.

    Returns:
      `[B, 1]`: binary cross-entropy, softmax cross-entropy, squared or absolute error, Huber's loss (Huber, 1964; half
      of the squared error up to `huber_delta`), or the negative Poisson log-likelihood without its constant,
      ``exp(x) - y x``.
    """
    missing = tf.math.is_nan(label)
    losses = _losses(task, tf.where(missing, tf.zeros_like(label), label), output)
    return tf.where(missing, tf.zeros_like(losses), losses)


def _losses(task: Task, label: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    if task.is_binary:
        return tf.nn.sigmoid_cross_entropy_with_logits(label, output)
    if task.is_multiclass:
        classes = tf.cast(label[:, 0], tf.int32)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(classes, output)[:, tf.newaxis]
    if task.kind == "count":
        return tf.exp(output) - label * output
    error = tf.abs(output - label)
    if task.loss == "absolute":
        return error
    if task.loss == "squared":
        return tf.square(error)
    delta = tf.constant(task.huber_delta, error.dtype)
    return tf.where(error <= delta, 0.5 * tf.square(error), delta * (error - 0.5 * delta))


def served_outputs(tasks: Sequence[Task], outputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Compute what the signatures return, by name.

    * A binary task has `logit` and `probability`, float32 `[B, 1]`.
    * A multiclass task has `classes`, string, and `probabilities`, float32, both `[B, classes]`.
    * Any other task has `prediction`, `[B, 1]`: the number, or the expected count.

    If there are several tasks, each name starts with the name of the task and `_`. Every output, even `classes`, has a
    row for each row of the request, because servers that batch requests split every output by rows.

    Args:
      tasks: the model's tasks.
      outputs: what the model computes, by the name of the task.
    """
    served = {}
    for task in tasks:
        output = outputs[task.name]
        if task.is_binary:
            served[served_name(tasks, task, LOGIT)] = output
        if task.is_multiclass:
            shape = tf.shape(output)
            served[served_name(tasks, task, CLASSES)] = tf.broadcast_to(tf.constant(list(task.classes)), shape)
        served[prediction_name(tasks, task)] = prediction_of(task, output)
    return served


def prediction_of(task: Task, output: tf.Tensor) -> tf.Tensor:
    """Compute the served prediction of a task, `[B, width]`, from the output of the model."""
    if task.is_multiclass:
        return tf.nn.softmax(output)
    if not task.is_binary and task.kind != "count":
        return output
    # In float32, TensorFlow rounds sigmoid and exp differently for the last rows of a batch: equal rows would not tie.
    exact = tf.cast(output, tf.float64)
    return tf.cast(tf.sigmoid(exact) if task.is_binary else tf.exp(exact), output.dtype)

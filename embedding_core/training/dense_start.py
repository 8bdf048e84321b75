"""Starts the dense part of a model from that of a previous run, if both have the same inputs, labels and variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import tensorflow as tf

from embedding_core.checkpoint.dense import DensePart, named_variables, read_dense, shapes_and_dtypes
from embedding_core.errors import CheckpointError
from embedding_core.schema import Json
from embedding_core.training.step import Trainable
from embedding_core.training.training_inputs import Inputs
from embedding_core.training_config import DenseStart

Ranges: TypeAlias = Mapping[str, Json]
"""Scale of each dense feature."""

_LONGEST = 300  # characters of a list in a message: a label may have thousands of classes
_SCALE = ("column", "log1p", "mean", "deviation", "limit")
_RECORDED_LATER = ("combiners", "tasks")  # releases up to 0.2.0 did not record them


def dense_inputs(inputs: Inputs) -> Json:
    """Describe a model's inputs and labels, in order, as JSON; equal shapes are not enough to restore weights.

    The loss of a regression is not among them: with each loss the output is a value of the label.
    """
    config = inputs.config
    features = [
        [feature.name, config.table_of(feature.name).dim, feature.max_sequence_length] for feature in config.features
    ]
    combined = [feature.name for feature in config.features if not feature.max_sequence_length]
    described = {
        "features": features,
        "dense": list(inputs.dense),
        "combiners": {name: config.table_of(name).combiner for name in combined},
        "tasks": [[task.name, task.kind, task.source] for task in inputs.tasks],
    }
    if classes := {task.name: list(task.classes) for task in inputs.tasks if task.is_multiclass}:
        described["classes"] = classes
    return described


def start_dense(
    start: DenseStart,
    trainable: Trainable,
    *,
    inputs: Json,
    ranges: Ranges,
    optimizer: str,
) -> Json:
    """Give the dense part and its optimizer the values of a previous run, or leave them as they are.

    Args:
      start: folder of the previous dense part, and what to restore from it.
      trainable: model and optimizer to fill: all weights or none, and all slots or none.
      inputs: description of the model's inputs, made by `dense_inputs`.
      ranges: scale of each dense feature in this run.
      optimizer: name of the dense optimizer.

    Returns:
      The report. `dense` and `optimizer` are "restored" or "new"; if new, `<key>_reason` says why. `variables` has the
      names of the restored weights. `ranges` is, by dense feature, "kept" (the scale of the previous run), "measured"
      (a new scale) or "not recorded". `not_recorded` has the parts of `inputs` that the checkpoint, of an earlier
      release, does not have; they are taken to be the same.

    Raises:
      CheckpointError: the saved dense part is damaged; or `start.dense` is "require", and it is missing or differs.
    """
    saved = read_dense(start.folder)
    weights, slots = named_variables(trainable.model, trainable.optimizer)
    report: Json = {"dense": "new", "optimizer": "new", "variables": [], "not_recorded": []}
    report["ranges"] = {name: _range_state(name, ranges, saved) for name in inputs["dense"]}
    if saved is not None:
        report["not_recorded"] = [key for key in _RECORDED_LATER if key not in saved.inputs]
        inputs = {key: value for key, value in inputs.items() if key not in report["not_recorded"]}
    reason = _reason(start, saved, weights, inputs, ranges)
    if reason and start.dense == "require":
        raise CheckpointError(
            f"the dense part of {start.folder!r} cannot be continued: {reason}. Keep model and features, or set "
            "`warm_start.dense` to restore or reset."
        )
    if reason or saved is None:
        return {**report, "dense_reason": reason, "optimizer_reason": "the dense part is new"}
    _fill(saved, weights)
    report |= {"dense": "restored", "variables": [_name(key) for key in weights]}
    reason = _optimizer_reason(start, saved, slots, optimizer)
    if reason:
        return {**report, "optimizer_reason": reason}
    _fill(saved, slots)
    return {**report, "optimizer": "restored"}


def _reason(
    start: DenseStart,
    saved: DensePart | None,
    weights: Mapping[str, tf.Variable],
    inputs: Json,
    ranges: Ranges,
) -> str:
    """Explain why the weights are not restored; empty if they are."""
    if start.dense == "reset":
        return "`warm_start.dense` is reset"
    if saved is None:
        return "the checkpoint has no dense part: an earlier release, or another trainer, wrote it"
    if saved.inputs != inputs:
        return f"the model has {_changed_input(inputs, saved.inputs)}"
    changed = [name for name in inputs["dense"] if _range_state(name, ranges, saved) == "measured"]
    if changed and start.ranges == "keep":
        return f"dense features are scaled by other ranges: {', '.join(changed)}"
    return _differences(saved, weights, "model/")


def _changed_input(now: Json, before: Mapping[str, object]) -> str:
    key = next(key for key in {**now, **before} if now.get(key) != before.get(key))
    return f"other {key}: {_short(now.get(key))}, {_short(before.get(key))} in the checkpoint"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _optimizer_reason(start: DenseStart, saved: DensePart, slots: Mapping[str, tf.Variable], name: str) -> str:
    if start.dense_optimizer == "reset":
        return "`warm_start.dense_optimizer` is reset"
    if saved.optimizer != name:
        return f"the optimizer is {name}, {saved.optimizer} in the checkpoint"
    return _differences(saved, slots, "optimizer/")


def _differences(saved: DensePart, variables: Mapping[str, tf.Variable], kind: str) -> str:
    """Describe the differences in keys, shapes and dtypes; empty if there are none."""
    now = shapes_and_dtypes(variables)
    before = {key: list(value) for key, value in saved.variables.items() if key.startswith(kind)}
    parts = [
        f"{_name(key)} is {now[key][0]}, {before[key][0]} in the checkpoint"
        for key in now
        if now[key] != before.get(key, now[key])
    ]
    parts += [f"{_name(key)} is not in the checkpoint" for key in now if key not in before]
    parts += [f"{_name(key)} of the checkpoint is not in the model" for key in before if key not in now]
    return "; ".join(parts)


def _name(key: str) -> str:
    return key.split("/", 2)[2]


def _fill(saved: DensePart, variables: Mapping[str, tf.Variable]) -> None:
    for variable, value in zip(variables.values(), saved.values(variables), strict=True):
        variable.assign(value)


def _range_state(name: str, ranges: Ranges, saved: DensePart | None) -> str:
    now, before = ranges.get(name), None if saved is None else saved.ranges.get(name)
    if now is None or (saved is not None and before is None):
        return "not recorded"
    if before is None:
        return "measured"
    return "kept" if all(now.get(key) == before.get(key) for key in _SCALE) else "measured"

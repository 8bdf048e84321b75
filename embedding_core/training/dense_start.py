"""Starts the dense part of a model from that of an earlier run, if both have the same inputs and variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

import tensorflow as tf

from embedding_core.checkpoint.dense import DensePart, described, named_variables, read_dense
from embedding_core.config import DenseChoice, DenseOptimizerChoice, EmbeddingConfig, RangesChoice
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.training.step import Trainable

_SCALE = ("column", "log1p", "mean", "deviation", "limit")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseStart:
    """What the dense part starts from.

    Attributes:
      folder: of the dense part.
      dense: "restore" takes the weights over if inputs, names and shapes agree, and else starts from new ones and says
        why; "require" makes a difference an error; "reset" always starts from new ones.
      optimizer: "restore" takes slots and iterations of the dense optimizer over too, if it is the same one; "reset"
        starts from new ones.
      ranges: "keep" takes weights over only if dense features are scaled by the ranges that the weights were trained
        with; "recompute" accepts other ranges.

    Raises:
      ConfigError: a field is none of its choices.
    """

    folder: str
    dense: DenseChoice = "restore"
    optimizer: DenseOptimizerChoice = "restore"
    ranges: RangesChoice = "keep"

    def __post_init__(self) -> None:
        for field, kind in {"dense": DenseChoice, "optimizer": DenseOptimizerChoice, "ranges": RangesChoice}.items():
            if getattr(self, field) not in get_args(kind):
                raise ConfigError(
                    f"`{field}` of the warm start is {getattr(self, field)!r}: it must be one of "
                    f"{', '.join(get_args(kind))}."
                )


def dense_inputs(config: EmbeddingConfig, dense: tuple[str, ...]) -> dict[str, Any]:
    """What a model's inputs are, in order, as JSON: weights mean nothing for other inputs, even of the same shapes."""
    features = [
        [feature.name, config.table_of(feature.name).dim, feature.max_sequence_length] for feature in config.features
    ]
    return {"features": features, "dense": list(dense)}


def start_dense(
    start: DenseStart,
    trainable: Trainable,
    *,
    inputs: Mapping[str, Any],
    ranges: Mapping[str, Mapping[str, Any]],
    optimizer: str,
) -> dict[str, Any]:
    """Give the dense part and its optimizer the values of an earlier run, or leave them as they are.

    Args:
      start: what to start from, and the choices.
      trainable: whose variables are filled, all or none of them.
      inputs: as `dense_inputs` gives them.
      ranges: by dense feature what it is scaled by now.
      optimizer: name of the dense optimizer.

    Returns:
      The report: `dense` and `optimizer`, "restored" or "new", each with a reason under `<key>_reason` if new;
      `variables`, the names of those restored; `ranges`, by dense feature "kept", "measured" or "not recorded".

    Raises:
      CheckpointError: the dense part is damaged, or differs and that is an error.
    """
    found = read_dense(start.folder)
    weights, slots = named_variables(trainable.model, trainable.optimizer)
    report: dict[str, Any] = {"dense": "new", "optimizer": "new", "variables": []}
    report["ranges"] = {name: _range_state(name, ranges, found) for name in inputs["dense"]}
    reason = _reason(start, found, weights, inputs, ranges)
    if reason and start.dense == "require":
        raise CheckpointError(
            f"the dense part of {start.folder!r} cannot be continued: {reason}. Keep model and features, or set "
            "`warm_start.dense` to restore or reset."
        )
    if reason or found is None:
        return {**report, "dense_reason": reason, "optimizer_reason": "the dense part is new"}
    _fill(found, weights)
    report |= {"dense": "restored", "variables": [_name(key) for key in weights]}
    reason = _optimizer_reason(start, found, slots, optimizer)
    if reason:
        return {**report, "optimizer_reason": reason}
    _fill(found, slots)
    return {**report, "optimizer": "restored"}


def _reason(
    start: DenseStart,
    found: DensePart | None,
    weights: Mapping[str, tf.Variable],
    inputs: Mapping[str, Any],
    ranges: Mapping[str, Mapping[str, Any]],
) -> str:
    """Why the weights are not taken over; empty if they are."""
    if start.dense == "reset":
        return "`warm_start.dense` is reset"
    if found is None:
        return "the checkpoint has no dense part: an earlier release, or another trainer, wrote it"
    if found.inputs != inputs:
        return f"the model's inputs are {_changed_input(inputs, found.inputs)}"
    changed = [name for name in inputs["dense"] if _range_state(name, ranges, found) == "measured"]
    if changed and start.ranges == "keep":
        return f"dense features are scaled by other ranges: {', '.join(changed)}"
    return _differences(found, weights, "model/")


def _changed_input(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    key = next(key for key in now if now[key] != before.get(key))
    return f"other {key}: {now[key]!r}, {before.get(key)!r} in the checkpoint"


def _optimizer_reason(start: DenseStart, found: DensePart, slots: Mapping[str, tf.Variable], name: str) -> str:
    if start.optimizer == "reset":
        return "`warm_start.dense_optimizer` is reset"
    if found.optimizer != name:
        return f"the optimizer is {name}, {found.optimizer} in the checkpoint"
    return _differences(found, slots, "optimizer/")


def _differences(found: DensePart, variables: Mapping[str, tf.Variable], kind: str) -> str:
    """What keys, shapes and dtypes differ in; empty if nothing does."""
    now = described(variables)
    before = {key: list(value) for key, value in found.variables.items() if key.startswith(kind)}
    parts = [
        f"{_name(key)} is {now[key][0]}, {before[key][0]} in it" for key in now if now[key] != before.get(key, now[key])
    ]
    parts += [f"{_name(key)} is not in the checkpoint" for key in now if key not in before]
    parts += [f"{_name(key)} of the checkpoint is not in the model" for key in before if key not in now]
    return "; ".join(parts)


def _name(key: str) -> str:
    return key.split("/", 2)[2]


def _fill(found: DensePart, variables: Mapping[str, tf.Variable]) -> None:
    for key, variable in variables.items():
        variable.assign(found.value(key))


def _range_state(name: str, ranges: Mapping[str, Mapping[str, Any]], found: DensePart | None) -> str:
    now, before = ranges.get(name), None if found is None else found.ranges.get(name)
    if now is None or (found is not None and before is None):
        return "not recorded"
    if before is None:
        return "measured"
    return "kept" if all(now.get(key) == before.get(key) for key in _SCALE) else "measured"

"""Writes the tables that a layer trains itself into Keras' own files (`.keras`, `.weights.h5`), and reads them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.engines.engine import Engine
from embedding_core.engines.tables import ITERATIONS
from embedding_core.errors import CheckpointError, EngineError
from embedding_core.translate import Model

Store: TypeAlias = Any  # a mapping that Keras writes to a file: arrays by key


def write_tables(engine: Engine, store: Store, layer: str) -> None:
    """Write tables, slots and the step counter of schedules, by checkpoint key.

    Args:
      engine: the engine that trains the tables.
      store: a mapping that Keras writes to a file.
      layer: name of the layer, for messages.

    Raises:
      EngineError (RuntimeError): there is nothing to write.
    """
    variables = saved_variables(engine)
    if not variables:
        raise EngineError(
            f"Layer {layer!r} has no tables that Keras could write: it is not built yet, or they are in a TPU's "
            "memory or on parameter servers. Call or build it before, or save with tf.train.Checkpoint."
        )
    for key, variable in variables.items():
        store[_stored(key)] = variable.numpy()


def read_tables(engine: Engine, model: Model, store: Store, layer: str) -> None:
    """Read what `write_tables` wrote.

    Args:
      engine: the engine that trains the tables.
      model: the tables; slots of tables without an optimizer are skipped.
      store: the mapping.
      layer: name of the layer, for messages.

    Raises:
      CheckpointError (RuntimeError): tables or slots are missing, unknown, or of another shape.
    """
    variables = {_stored(key): variable for key, variable in saved_variables(engine).items()}
    unused = tuple(_stored(f"{table.name}/") for table in model.tables if table.optimizer is None)
    given = {key for key in set(store.keys()) if not (unused and key.startswith(unused))}
    refuse_other_keys(layer, set(variables), given)
    for key, variable in variables.items():
        if tuple(store[key].shape) != tuple(variable.shape):
            raise CheckpointError(
                f"{_named(key)!r} of layer {layer!r} has the shape {tuple(store[key].shape)} in the file, and "
                f"{tuple(variable.shape)} in the layer: load it into a model of the same tables."
            )
    for key, variable in variables.items():
        variable.assign(store[key])


def refuse_other_keys(layer: str, expected: Collection[str], given: Collection[str]) -> None:
    """Refuse a file that does not hold exactly the variables of a layer.

    Raises:
      CheckpointError (RuntimeError): some are missing or unknown.
    """
    missing = sorted(_named(key) for key in set(expected) - set(given))
    unknown = sorted(_named(key) for key in set(given) - set(expected))
    if missing or unknown:
        raise CheckpointError(
            f"The file does not hold the variables of layer {layer!r}: missing {missing}, not of this layer {unknown}. "
            "It is of other tables or optimizers, or of tables trained in another way (`table_update`, a TPU): load it "
            "into a layer like the one that wrote it, or move between them with tf.train.Checkpoint."
        )


def saved_variables(engine: Engine) -> dict[str, tf.Variable]:
    """Return tables, slots and the step counter of schedules, by checkpoint key; nothing if tables are out of reach."""
    variables = dict(engine.table_variables)
    count = getattr(engine.tables, ITERATIONS, None)
    return variables if not variables or count is None else {**variables, ITERATIONS: count}


def _stored(key: str) -> str:
    """Escape a key for a file: "/", which would make a group, becomes ".S"; a dot before S or D becomes ".D"."""
    return re.sub(r"\.(?=[SD])", ".D", key).replace("/", ".S")


def _named(key: str) -> str:
    return re.sub(r"\.([SD])", lambda match: "/" if match[1] == "S" else ".", key)

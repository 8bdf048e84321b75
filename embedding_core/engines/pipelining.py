"""Trains a table of a simulated TPU, and emulates pipelined lookups, whose activations are one step old.

With `pipeline_execution_with_tensor_core` a TPU looks up a batch while the previous step is still
running, so the lookup does not see that step's update. Here the update is applied immediately, and
the next lookup returns the previous values of the rows that the update changed.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from embedding_core.engines.table_updates import apply_to_table, touched_rows
from embedding_core.engines.tables import unmirrored
from embedding_core.engines.variables import PARAMETERS
from embedding_core.errors import EngineError
from embedding_core.optimizers import Optimizer
from embedding_core.translate import TableSpec
from embedding_core.update_rules import Rate


class EarlierRows:
    """The rows of one table that the last update changed, with their values before and after it.

    The engine calls `forget` after each lookup. A row that has been overwritten since the update, for example by
    restoring a checkpoint, is looked up with its current value.
    """

    def __init__(self, dim: int):
        self._dim = dim
        with tf.init_scope():
            self._ids, self._before, self._after = unmirrored(self._variables)

    def _variables(self) -> tuple[tf.Variable, ...]:
        nothing = (tf.constant([-1], tf.int64), tf.zeros([1, self._dim]), tf.zeros([1, self._dim]))
        shapes = ([None], [None, self._dim], [None, self._dim])
        return tuple(
            tf.Variable(value, trainable=False, shape=shape) for value, shape in zip(nothing, shapes, strict=True)
        )

    def keep(self, ids: tf.Tensor, before: tf.Tensor, after: tf.Tensor) -> None:
        """Store an update.

        Args:
          ids: int64 [N], distinct ids of the updated rows.
          before: [N, dim], the rows before the update.
          after: [N, dim], the rows after the update.
        """
        order = tf.argsort(ids)
        self._set(*(tf.gather(values, order) for values in (ids, before, after)))

    def _set(self, ids: tf.Tensor, before: tf.Tensor, after: tf.Tensor) -> None:
        """Store sorted ids and their rows, after an entry with id -1, so that `applied_to` always finds an entry."""
        self._ids.assign(tf.concat([tf.constant([-1], tf.int64), ids], 0))
        self._before.assign(tf.concat([tf.zeros([1, self._dim]), before], 0))
        self._after.assign(tf.concat([tf.zeros([1, self._dim]), after], 0))

    def forget(self) -> None:
        """Drop the stored update: the next lookup sees the table as it is."""
        self._set(tf.zeros([0], tf.int64), tf.zeros([0, self._dim]), tf.zeros([0, self._dim]))

    def applied_to(self, rows: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Return `rows` [N, dim] of `ids`, with the values before the stored update for the rows that it changed."""
        known = self._ids.read_value()
        places = tf.searchsorted(known[tf.newaxis], ids[tf.newaxis], side="right")[0] - 1
        changed = tf.equal(tf.gather(known, places), ids)
        ours = tf.reduce_all(tf.equal(tf.gather(self._after, places), rows), axis=1)
        return tf.where(tf.logical_and(changed, ours)[:, tf.newaxis], tf.gather(self._before, places), rows)


def train_table(
    optimizer: Optimizer,
    variables: Mapping[str, tf.Variable],
    ids: tf.Tensor,
    gradients: tf.Tensor,
    rate: Rate,
    earlier: EarlierRows | None,
) -> None:
    """Update a table and its slots in place, and store what the update changed, if lookups are pipelined.

    Args:
      optimizer: optimizer of the table.
      variables: the table as "parameters", and its slots by name.
      ids: int64 [N] rows, duplicates allowed.
      gradients: [N, dim], one per id.
      rate: the learning rate of this step.
      earlier: stores the update; None without pipelining.
    """
    parameters, slots = variables[PARAMETERS], [variables[slot.name] for slot in optimizer.slots]
    if earlier is None:
        apply_to_table(optimizer, parameters, slots, ids, gradients, rate)
        return
    touched = touched_rows(optimizer, parameters, ids)
    before = tf.gather(parameters, touched)
    with tf.control_dependencies([before]):
        apply_to_table(optimizer, parameters, slots, ids, gradients, rate)
    earlier.keep(touched, before, tf.gather(parameters, touched))


def optimizer_of(table: TableSpec) -> Optimizer:
    """Return a table's optimizer; `model_of` has checked that on a TPU every table has one.

    Raises:
      EngineError (RuntimeError): the table has none.
    """
    if table.optimizer is None:
        raise EngineError(f"table {table.name!r} has no optimizer: give it one, or give TPUEmbedding one.")
    return table.optimizer

"""Emulates pipelined lookups, whose activations are one step old.

With `pipeline_execution_with_tensor_core` a TPU looks up a batch while the previous step is still
running, so the lookup does not see that step's update. Here the update is applied immediately, and
the next lookup returns the previous values of the rows that the update changed.
"""

from __future__ import annotations

import tensorflow as tf

from embedding_core.engines.tables import unmirrored


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

"""Emulates pipelined lookups, whose activations are one step old.

With `pipeline_execution_with_tensor_core` a TPU looks up a batch while the step before it still
computes, so that the lookup does not see that step's update. Here the update is done at once, and
the next lookup is given the previous values of the rows that it changed.
"""

from __future__ import annotations

import tensorflow as tf

from embedding_core.engines.tables import unmirrored


class EarlierRows:
    """The rows of one table that the last update changed, before and after; empty after a lookup.

    A row that something else has written since, such as a restored checkpoint, is not given its previous value.
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
        """Remember an update.

        Args:
          ids: int64 [N] rows, each once.
          before: [N, dim], their values before it.
          after: [N, dim], their values after it.
        """
        order = tf.argsort(ids)
        self._set(*(tf.gather(values, order) for values in (ids, before, after)))

    def _set(self, ids: tf.Tensor, before: tf.Tensor, after: tf.Tensor) -> None:
        """Id -1 comes first, so that there is always something to compare with."""
        self._ids.assign(tf.concat([tf.constant([-1], tf.int64), ids], 0))
        self._before.assign(tf.concat([tf.zeros([1, self._dim]), before], 0))
        self._after.assign(tf.concat([tf.zeros([1, self._dim]), after], 0))

    def forget(self) -> None:
        """Forget the update: the next lookup sees the table as it is."""
        self._set(tf.zeros([0], tf.int64), tf.zeros([0, self._dim]), tf.zeros([0, self._dim]))

    def applied_to(self, rows: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Return rows [N, dim] of `ids` as they were before the update that is remembered."""
        known = self._ids.read_value()
        places = tf.searchsorted(known[tf.newaxis], ids[tf.newaxis], side="right")[0] - 1
        changed = tf.equal(tf.gather(known, places), ids)
        ours = tf.reduce_all(tf.equal(tf.gather(self._after, places), rows), axis=1)
        return tf.where(tf.logical_and(changed, ours)[:, tf.newaxis], tf.gather(self._before, places), rows)

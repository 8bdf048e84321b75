"""Applies one optimizer step to the rows of a table that a batch touched, at once or one step late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from embedding_core.engines.tables import PARAMETERS, unmirrored
from embedding_core.errors import EngineError
from embedding_core.optimizers import SGD, Adagrad, Optimizer
from embedding_core.translate import TableSpec
from embedding_core.update_rules import Rate, Rows, Slots, clipped, updated

_ROWS_PER_SWEEP = 16384  # how many untouched rows non-lazy Adam updates at a time
LONGEST_SUM = 4096  # maximum number of float32 gradients of a row that are added one after another


class _Trained(NamedTuple):
    """A table with its slots and its optimizer."""

    optimizer: Optimizer
    table: tf.Variable
    slots: Sequence[tf.Variable]


def apply_to_table(
    optimizer: Optimizer,
    table: tf.Variable,
    slots: Sequence[tf.Variable],
    ids: tf.Tensor,
    gradients: tf.Tensor,
    rate: Rate,
) -> None:
    """Update a table and its slots in place, with memory in proportion to the batch, not to the table.

    Duplicate ids accumulate first (see `accumulated`) and their row is updated once; with
    `use_gradient_accumulation` off, each occurrence is a separate update, in the order given.

    Args:
      optimizer: optimizer of the table.
      table: float32 [rows, dim].
      slots: in the order of `optimizer.slots`.
      ids: int [N] rows, duplicates allowed.
      gradients: [N, dim], one per id.
      rate: the learning rate of this step.
    """
    gradients = tf.cast(gradients, table.dtype)
    descends = _is_plain(optimizer, SGD) and "GPU" not in table.device  # the kernel of `_descend` is for CPUs
    if not optimizer.use_gradient_accumulation:
        if descends:
            _descend(table, ids, gradients, rate)
        else:
            _one_by_one(_Trained(optimizer, table, slots), ids, gradients, rate)
        return
    unique, summed = accumulated(ids, gradients)
    if descends:
        _descend(table, unique, clipped(summed, *optimizer.gradient_bounds), rate)
        return
    if _is_plain(optimizer, Adagrad):
        _adagrad(table, slots[0], unique, clipped(summed, *optimizer.gradient_bounds), rate)
        return
    trained = _Trained(optimizer, table, slots)
    rows, new_slots = _computed(trained, unique, summed, rate)
    if optimizer.moves_all_rows:
        with tf.control_dependencies([rows, *new_slots]):
            _sweep(trained, rate)
    _write(trained, unique, rows, new_slots)


def accumulated(ids: tf.Tensor, gradients: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Add up the gradients of each id, in the type of the gradients.

    If an id occurs more than `LONGEST_SUM` times, its gradients are summed in blocks, and then the blocks are summed.
    Added one after another, 65,536 equal float32 values give a sum that is 0.1% off; in blocks the relative error
    stays below 1e-4.

    Args:
      ids: int [N], duplicates allowed.
      gradients: float [N, dim].

    Returns:
      The distinct ids [U] in the order of their first occurrence, and the sum for each, [U, dim].
    """
    if ids.shape[0] is not None and ids.shape[0] <= LONGEST_SUM:
        unique, places = tf.unique(ids)
        return unique, _sums(gradients, places, tf.size(unique))
    unique, places, counts = tf.unique_with_counts(ids)
    summed = tf.cond(
        tf.reduce_any(counts > LONGEST_SUM),
        lambda: _sums_of_blocks(gradients, places, tf.size(unique)),
        lambda: _sums(gradients, places, tf.size(unique)),
    )
    return unique, tf.ensure_shape(summed, [None, gradients.shape[-1]])


def _sums(gradients: tf.Tensor, places: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    return tf.math.unsorted_segment_sum(gradients, places, count)


def _sums_of_blocks(gradients: tf.Tensor, places: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Sum within each block of the batch first, so that no addend is much smaller than the running sum."""
    occurrences = tf.range(tf.size(places, out_type=tf.int64), dtype=tf.int64)
    blocks = tf.size(places, out_type=tf.int64) // LONGEST_SUM + 1
    pairs, of_pair = tf.unique(tf.cast(places, tf.int64) * blocks + occurrences // LONGEST_SUM)
    return _sums(_sums(gradients, of_pair, tf.size(pairs)), pairs // blocks, count)


def _is_plain(optimizer: Optimizer, kind: type[Optimizer]) -> bool:
    """Return whether the optimizer is of that class and has neither weight decay nor bounds of the weights."""
    extras = (optimizer.weight_decay_factor, optimizer.clip_weight_min, optimizer.clip_weight_max)
    return type(optimizer) is kind and extras == (None, None, None)


def _descend(table: tf.Variable, ids: tf.Tensor, gradients: tf.Tensor, rate: Rate) -> None:
    """Apply `update_rules.sgd` to rows in place, in one pass; duplicate ids are separate updates, in order."""
    tf.raw_ops.ResourceSparseApplyProximalGradientDescent(
        var=table.handle,
        alpha=tf.cast(rate, table.dtype),
        l1=tf.zeros([], table.dtype),
        l2=tf.zeros([], table.dtype),
        grad=gradients,
        indices=ids,
        use_locking=True,
    )


def _adagrad(table: tf.Variable, accumulators: tf.Variable, ids: tf.Tensor, gradients: tf.Tensor, rate: Rate) -> None:
    """Apply `update_rules.adagrad` to rows and slots in place, in one pass; the ids must be distinct."""
    tf.raw_ops.ResourceSparseApplyAdagradV2(
        var=table.handle,
        accum=accumulators.handle,
        lr=tf.cast(rate, table.dtype),
        epsilon=tf.zeros([], table.dtype),
        grad=gradients,
        indices=ids,
        use_locking=True,
    )


def touched_rows(optimizer: Optimizer, table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Return the rows that `apply_to_table` changes, each once: those of the ids, or all."""
    if optimizer.moves_all_rows:
        return tf.range(table.shape[0], dtype=tf.int64)
    return tf.unique(ids)[0]


def _computed(trained: _Trained, ids: tf.Tensor, gradients: tf.Tensor, rate: Rate) -> tuple[Rows, Slots]:
    gathered = tuple(tf.gather(slot, ids) for slot in trained.slots)
    return updated(trained.optimizer, tf.gather(trained.table, ids), gathered, gradients, rate)


def _write(trained: _Trained, ids: tf.Tensor, rows: tf.Tensor, new_slots: Slots) -> None:
    for variable, values in zip([trained.table, *trained.slots], [rows, *new_slots], strict=True):
        variable.scatter_update(tf.IndexedSlices(values, ids))


def _sweep(trained: _Trained, rate: Rate) -> None:
    """Update every row with a zero gradient, block by block."""
    count, dim = trained.table.shape

    def body(start: tf.Tensor) -> tuple[tf.Tensor]:
        ids = tf.range(start, tf.minimum(start + _ROWS_PER_SWEEP, count))
        zeros = tf.zeros([tf.size(ids), dim], trained.table.dtype)
        _write(trained, ids, *_computed(trained, ids, zeros, rate))
        return (start + _ROWS_PER_SWEEP,)

    tf.while_loop(lambda start: start < count, body, (tf.constant(0),), parallel_iterations=1)


def _one_by_one(trained: _Trained, ids: tf.Tensor, gradients: tf.Tensor, rate: Rate) -> None:
    """Apply the k-th occurrence of every id in round k, so that each row is updated in the order of the batch."""
    turns = _turns(ids)
    rounds = tf.reduce_max(tf.concat([turns + 1, [0]], 0))

    def body(turn: tf.Tensor) -> tuple[tf.Tensor]:
        now = tf.equal(turns, turn)
        chosen = tf.boolean_mask(ids, now)
        _write(trained, chosen, *_computed(trained, chosen, tf.boolean_mask(gradients, now), rate))
        return (turn + 1,)

    tf.while_loop(lambda turn: turn < rounds, body, (tf.constant(0),), parallel_iterations=1)


def _turns(ids: tf.Tensor) -> tf.Tensor:
    """Count the previous occurrences of each id in the batch, int32 [N]."""
    order = tf.argsort(ids, stable=True)
    ordered = tf.gather(ids, order)
    fresh = tf.concat([[True], tf.not_equal(ordered[1:], ordered[:-1])], 0)[: tf.size(ids)]
    places = tf.range(tf.size(ids))
    starts = tf.gather(tf.boolean_mask(places, fresh), tf.cumsum(tf.cast(fresh, tf.int32)) - 1)
    return tf.scatter_nd(order[:, tf.newaxis], places - starts, tf.shape(ids))


# Trains a table of a simulated TPU, and emulates pipelined lookups, whose activations are one step old.
#
# With `pipeline_execution_with_tensor_core` a TPU looks up a batch while the previous step is still running, so the
# lookup does not see that step's update. Here the update is applied immediately, and the next lookup returns the
# previous values of the rows that the update changed.


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
        no_rows = (tf.constant([-1], tf.int64), tf.zeros([1, self._dim]), tf.zeros([1, self._dim]))
        shapes = ([None], [None, self._dim], [None, self._dim])
        return tuple(
            tf.Variable(value, trainable=False, shape=shape) for value, shape in zip(no_rows, shapes, strict=True)
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

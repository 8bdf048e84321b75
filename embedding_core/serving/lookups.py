"""The lookups of an exported model: those of `embedding_core.lookup`, for all features together and in few operations.

At a batch of one the number of operations is what a lookup costs, so whatever can be done once for all features
is. The exported tables have one row more than the trained ones, all zeros, the *row of nothing*: a missing
value or a dropped id of a column of one value reads it, which costs no masking of the result.

========================  ==============================================================================
features                  operations
========================  ==============================================================================
of one value, `[B]`       one comparison for all of them, then a gather each
of several, ragged        one list of the ids of all of them, filtered only where there is something to drop;
                          then one gathering and combining operation each
========================  ==============================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.config import Combiner
from embedding_core.lookup import combine_in_order

__all__ = [
    "Several",
    "Single",
    "invalid_ids",
    "is_row",
    "look_up_several",
    "look_up_single",
    "with_row_of_nothing",
]


def with_row_of_nothing(rows: tf.Tensor) -> tf.Tensor:
    """The table `[rows, dim]` with a row of zeros behind the last one."""
    return tf.concat([rows, tf.zeros([1, rows.shape[1]], rows.dtype)], 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Single:
    """The ids of one feature of one value.

    Attributes:
      table: `[rows + 1, dim]`, with the row of nothing.
      rows: of the trained table.
      ids: int64 `[B]`.
      absent: bool `[B]`, which examples have no id, where that cannot be told from the ids; then all others are valid.
    """

    table: Any
    rows: int
    ids: tf.Tensor
    absent: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Several:
    """The ids of one feature of any number of values, whose rows are combined.

    Attributes:
      table: `[rows + 1, dim]`.
      rows: of the trained table.
      ids: int64 `[B, None]`.
      present: bool `[N]`, which ids count, where that cannot be told from the ids; then all others are valid.
      combiner: how several rows become one.
    """

    table: Any
    rows: int
    ids: tf.RaggedTensor
    present: tf.Tensor | None = None
    combiner: Combiner


def is_row(ids: tf.Tensor, rows: int) -> tf.Tensor:
    """Whether ids lie in 0 .. rows - 1; as unsigned numbers, the negative ones are the largest."""
    return tf.less(tf.bitcast(ids, tf.uint64), tf.constant(rows, tf.uint64))


def invalid_ids(features: Mapping[str, Single], missing: int) -> dict[str, tf.Tensor]:
    """How many ids are no rows of their table, int64 scalars by name; one that stands for `missing` is none at all."""
    if not features:
        return {}
    ids = tf.stack([one.ids for one in features.values()])
    outside = tf.bitcast(ids, tf.uint64) >= _limits(features, tf.uint64)
    counts = tf.reduce_sum(tf.cast(outside & (ids != missing), tf.int64), 1)
    return dict(zip(features, tf.unstack(counts, len(features)), strict=True))


def look_up_single(features: Mapping[str, Single]) -> dict[str, tf.Tensor]:
    """The row of each id, and zeros for what is absent or no row; float32 `[B, dim]` by name."""
    told = {name: one for name, one in features.items() if one.absent is not None}
    bounded = {name: one for name, one in features.items() if one.absent is None}
    places = {**_where_present(told), **_within_bounds(bounded)}
    return {name: _float32(tf.gather(one.table, places[name])) for name, one in features.items()}


def _where_present(features: Mapping[str, Single]) -> dict[str, tf.Tensor]:
    if not features:
        return {}
    absent = tf.stack([one.absent for one in features.values()])
    places = tf.where(absent, _limits(features, tf.int64), tf.stack([one.ids for one in features.values()]))
    return dict(zip(features, tf.unstack(places, len(features)), strict=True))


def _within_bounds(features: Mapping[str, Single]) -> dict[str, tf.Tensor]:
    if not features:
        return {}
    ids = tf.bitcast(tf.stack([one.ids for one in features.values()]), tf.uint64)
    places = tf.bitcast(tf.minimum(ids, _limits(features, tf.uint64)), tf.int64)
    return dict(zip(features, tf.unstack(places, len(features)), strict=True))


def _limits(features: Mapping[str, Single], dtype: tf.DType) -> tf.Tensor:
    """The place of the row of nothing, `[features, 1]`."""
    return tf.constant([[one.rows] for one in features.values()], dtype)


def look_up_several(features: Mapping[str, Several]) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """The combined rows of each example, float32 `[B, dim]` by name, and how many ids were dropped, int64 by name."""
    vectors: dict[str, tf.Tensor] = {}
    dropped: dict[str, tf.Tensor] = {}
    for told in (True, False):
        group = {name: one for name, one in features.items() if (one.present is not None) == told}
        if group:
            batch = tf.size(next(iter(group.values())).ids.row_splits) - 1
            ids, segments, counts = _filtered(list(group.values()))
            dropped.update(zip(group, counts, strict=True))
            for place, (name, one) in enumerate(group.items()):
                vectors[name] = _combined(one, ids[place], segments[place], batch)
    return vectors, dropped


def _filtered(features: Sequence[Several]) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
    """The ids that count, the example of each, and how many were dropped; one list per feature."""
    ids = tf.concat([one.ids.values for one in features], 0)
    splits = tf.stack([one.ids.row_splits for one in features])
    sizes = splits[:, -1]
    batch = tf.shape(splits, tf.int64)[1] - 1
    starts = tf.reshape(splits[:, :-1] + tf.cumsum(sizes, exclusive=True)[:, tf.newaxis], [-1])
    nested = [tf.range(len(features) + 1, dtype=tf.int64) * batch, tf.concat([starts, [tf.size(ids, tf.int64)]], 0)]
    found = tf.raw_ops.RaggedTensorToSparse(rt_nested_splits=nested, rt_dense_values=ids).sparse_indices
    where = tf.ensure_shape(found, [None, 3])  # feature, example, position
    owners, segments = where[:, 0], where[:, 1]
    if features[0].present is None:
        limits = tf.constant([one.rows for one in features], tf.uint64)
        counts = tf.less(tf.bitcast(ids, tf.uint64), tf.gather(limits, owners))
    else:
        counts = tf.concat([one.present for one in features], 0)

    def without() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        keep = tf.where(counts)
        left = tf.math.unsorted_segment_sum(tf.cast(counts, tf.int64), owners, len(features))
        return tf.gather_nd(ids, keep), tf.gather_nd(segments, keep), left

    kept, rows, left = tf.cond(
        tf.reduce_all(counts), lambda: (tf.identity(ids), tf.identity(segments), tf.identity(sizes)), without
    )
    count = len(features)
    return tf.split(kept, left, num=count), tf.split(rows, left, num=count), tf.unstack(sizes - left, count)


def _combined(one: Several, ids: tf.Tensor, segments: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    if one.table.dtype == tf.float32:
        return combine_in_order(one.table.read_value(), segments, batch, one.combiner, places=ids)
    return combine_in_order(_float32(tf.gather(one.table, ids)), segments, batch, one.combiner)


def _float32(rows: tf.Tensor) -> tf.Tensor:
    return rows if rows.dtype == tf.float32 else tf.cast(rows, tf.float32)

"""The lookups of an exported model: those of `embedding_core.lookup`, for all features together and in few operations.

At a batch of one the number of operations is what a lookup costs, so whatever can be done once for all features
is. The exported tables have one row more than the trained ones, all zeros, the *row of nothing*: a missing
value or a dropped id of a column of one value reads it, which costs no masking of the result.

========================  ==============================================================================
features                  operations
========================  ==============================================================================
of one value, `[B]`       one comparison for all of them, then a gather each
of several, ragged        one condition for all of them, under which ids are filtered; then one gathering
                          and combining operation each
========================  ==============================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.config import Combiner
from embedding_core.features import segments_of_splits
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
      ids: int64 `[B, None]`.
      keep: bool `[N]`, which ids count; None for all.
      combiner: how several rows become one.
    """

    table: Any
    ids: tf.RaggedTensor
    keep: tf.Tensor | None
    combiner: Combiner


def is_row(ids: tf.Tensor, rows: int) -> tf.Tensor:
    """Whether ids lie in 0 .. rows - 1; as unsigned numbers, the negative ones are the largest."""
    return tf.less(tf.bitcast(ids, tf.uint64), tf.constant(rows, tf.uint64))


def invalid_ids(single: Mapping[str, Single], several: Mapping[str, Several], missing: int) -> dict[str, tf.Tensor]:
    """How many ids are no rows of their table, int64 scalars by name; one that stands for `missing` is none at all."""
    found = {name: tf.reduce_sum(tf.cast(tf.logical_not(one.keep), tf.int64)) for name, one in several.items()}
    if not single:
        return found
    ids = tf.stack([one.ids for one in single.values()])
    outside = tf.bitcast(ids, tf.uint64) >= _limits(single, tf.uint64)
    counts = tf.reduce_sum(tf.cast(outside & (ids != missing), tf.int64), 1)
    return {**found, **dict(zip(single, tf.unstack(counts, len(single)), strict=True))}


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


def look_up_several(features: Mapping[str, Several]) -> dict[str, tf.Tensor]:
    """The combined rows of each example; float32 `[B, dim]` by name."""
    ids, segments = _filtered(list(features.values()))
    return {name: _combined(one, ids[place], segments[place]) for place, (name, one) in enumerate(features.items())}


def _filtered(features: Sequence[Several]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The ids that count and the example of each: as they are where all of them do, which is the rule."""
    ids = [one.ids.values for one in features]
    segments = [segments_of_splits(one.ids.row_splits, one.ids.values) for one in features]
    picked = [place for place, one in enumerate(features) if one.keep is not None]
    if not picked:
        return ids, segments
    masks = [features[place].keep for place in picked]

    def as_they_are() -> list[tf.Tensor]:
        return [tf.identity(values[place]) for values in (ids, segments) for place in picked]

    def filtered() -> list[tf.Tensor]:
        kept = {place: tf.where(mask) for place, mask in zip(picked, masks, strict=True)}
        return [tf.gather_nd(values[place], kept[place]) for values in (ids, segments) for place in picked]

    found = tf.cond(tf.reduce_all(tf.concat(masks, 0)), as_they_are, filtered)
    for number, place in enumerate(picked):
        ids[place], segments[place] = found[number], found[len(picked) + number]
    return ids, segments


def _combined(one: Several, ids: tf.Tensor, segments: tf.Tensor) -> tf.Tensor:
    count = one.ids.nrows(tf.int32)
    if one.table.dtype == tf.float32:
        return combine_in_order(one.table.read_value(), segments, count, one.combiner, places=ids)
    return combine_in_order(_float32(tf.gather(one.table, ids)), segments, count, one.combiner)


def _float32(rows: tf.Tensor) -> tf.Tensor:
    return rows if rows.dtype == tf.float32 else tf.cast(rows, tf.float32)

"""Looks up all features of an exported model together, in few operations, with the results of `lookup.combine`.

For a batch of one row, the time of a lookup depends on the number of its operations, so everything that can be done
once for all features is done once. Tables of equal dim, except large ones, are concatenated in one *block*
(`table_blocks`), and the features of a block are looked up together: ids become positions in the block, and one
operation gathers, or gathers and combines, the rows of all these features. Rows of other types than float32 are
gathered first, and then become float32.

========================  ==============================================================================
features                  operations for all features of a block
========================  ==============================================================================
of one value, `[B]`       stack the ids to `[features, B]`; one comparison with the numbers of rows, one gather
of several, ragged        concatenate the ids; filter them only if some must be dropped; one operation gathers
                          and combines
========================  ==============================================================================

A block is first read with `read_value`, which copies nothing, and rows are gathered from the result. Gathering from the
variable itself would switch it to TensorFlow's copy-on-read mode, in which every `read_value` copies the whole block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.columns import size_constant
from embedding_core.config import Combiner
from embedding_core.lookup import combine_in_order, segments_of_splits
from embedding_core.serving_config import INT8_FACTS, RowsDtype

# Stores rows of tables in the types that are served, and computes the float32 rows that they stand for.
#
# float16 rows are rounded to 11 significant bits. An int8 row of n values has n + 8 bytes: a level from -127 to 127 for
# each value, then the row's scale and offset, float32. A value is level * scale + offset. The offset is the middle of
# the row's values, and the scale is the difference between the largest and the smallest, divided by 254. Rows of equal
# values have the scale 0 and are exact. The error of a value is at most the sum of
#
# - half the scale,
# - 2**-22 of the row's largest absolute value, for four roundings of float32,
# - 2**-118, because a scale or offset below the normal numbers of float32 becomes 0.
#
# A row is stored whole, so that one operation gathers it, and one write replaces it.

Floats = npt.NDArray[np.float32]

_LEVELS = 127
_NORMAL = float(np.finfo(np.float32).tiny)


def encoded(rows: Floats, dtype: RowsDtype) -> npt.NDArray[Any]:
    """Store rows, float32 `[N, dim]`, as `[N, row_width(dim, dtype)]` of type `dtype`.

    Values that float16 cannot hold become infinite, and a row that int8 cannot hold has a scale or offset that is not
    finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _int8(rows) if dtype == "int8" else rows.astype(dtype, copy=False)


def _int8(rows: Floats) -> npt.NDArray[np.int8]:
    least, most = rows.min(1).astype(np.float64), rows.max(1).astype(np.float64)
    facts = np.stack([(most - least) / (2 * _LEVELS), (most + least) / 2], 1).astype(np.float32)
    facts[np.abs(facts) < _NORMAL] = 0  # TensorFlow computes with denormal numbers as with 0
    scale, offset = facts[:, :1].astype(np.float64), facts[:, 1:].astype(np.float64)
    levels = np.rint((rows - offset) / np.where(scale == 0, np.inf, scale))
    stored = np.empty((len(rows), rows.shape[1] + INT8_FACTS), np.int8)
    stored[:, :-INT8_FACTS] = np.nan_to_num(np.clip(levels, -_LEVELS, _LEVELS))
    stored[:, -INT8_FACTS:] = facts.view(np.int8)
    return stored


def decoded(rows: tf.Tensor) -> tf.Tensor:
    """Return the float32 rows `[..., dim]` that stored rows `[..., width]` stand for; their type says how."""
    if rows.dtype == tf.float32:
        return rows
    if rows.dtype != tf.int8:
        return tf.cast(rows, tf.float32)
    dim = rows.shape[-1] - INT8_FACTS
    scale = tf.bitcast(rows[..., dim : dim + 4], tf.float32)[..., tf.newaxis]
    offset = tf.bitcast(rows[..., dim + 4 :], tf.float32)[..., tf.newaxis]
    return tf.cast(rows[..., :dim], tf.float32) * scale + offset


def rounded(rows: Floats, dtype: RowsDtype) -> Floats:
    """Return the float32 rows that are served for `rows`, computed by NumPy."""
    stored = encoded(rows, dtype)
    if dtype != "int8":
        return stored.astype(np.float32, copy=False)
    facts = np.ascontiguousarray(stored[:, -INT8_FACTS:]).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        values: Floats = stored[:, :-INT8_FACTS].astype(np.float32) * facts[:, :1] + facts[:, 1:]
    return values


# Looks up all features of an exported model together, in few operations, with the results of `lookup.combine`.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """The location of a table's rows in a block.

    Attributes:
      block: variable `[all rows, width]`, of type `RowsDtype`.
      name: name of the block.
      start: position of the table's first row in the block.
      count: number of rows of the table.
      zeros: position of a row of zeros in the block; None if it has none.
      updated: whether rows are written to the block while it is served. Rows are then gathered from the variable, which
        locks it, and are not read through `read_value`, which would copy the whole block after the first write.
    """

    block: tf.Variable
    name: str
    start: int
    count: int
    zeros: int | None = None
    updated: bool = False

    def at(self, places: tf.Tensor) -> tf.Tensor:
        """Gather rows by their positions in the block, in the type of the block: `[..., width]`."""
        return tf.gather(self.block if self.updated else self.block.read_value(), places)

    def slices(self, size: int) -> Iterator[tf.Tensor]:
        """Yield the table's rows, float32 `[size, dim]`; the last slice may be smaller."""
        block = self.block.read_value()
        for start in range(self.start, self.start + self.count, size):
            yield decoded(block[start : min(start + size, self.start + self.count)])


class Counts(NamedTuple):
    """Numbers of invalid or dropped ids of some features, int64 `[features]`."""

    features: tuple[str, ...]
    counts: tf.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleIds:
    """The ids of one feature that has one value per example.

    Attributes:
      rows: rows of the table.
      ids: int64 `[B]`; an id outside the table gives zeros.
      lengths: int32 `[B]`, bytes of each token, 0 if it is missing; None if missing tokens have ids outside the table.
    """

    rows: Rows
    ids: tf.Tensor
    lengths: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedIds:
    """The ids of one feature that has any number of values per example, whose rows are combined.

    Attributes:
      rows: rows of the table.
      ids: int64 `[B, None]`; an id outside the table is dropped.
      lengths: int32 `[N]`, bytes of each token, 0 if it is missing; None if missing tokens have ids outside the table.
      combiner: how the rows of an example become one vector.
    """

    rows: Rows
    ids: tf.RaggedTensor
    lengths: tf.Tensor | None = None
    combiner: Combiner

    @property
    def unit(self) -> tuple[bool, str, str]:
        """The key that features share if one operation combines them; features with `lengths` sort first."""
        return self.lengths is None, self.rows.name, self.combiner


def is_row(ids: tf.Tensor, rows: Any) -> tf.Tensor:
    """Return whether ids are in 0 .. rows - 1; as unsigned integers, negative ids are larger than all others."""
    return tf.less(tf.bitcast(ids, tf.uint64), tf.constant(rows, tf.uint64))


def look_up_single(features: Mapping[str, SingleIds], missing: int) -> tuple[dict[str, tf.Tensor], list[Counts]]:
    """Look up the row of each id; zeros for a missing id, or one outside its table.

    Args:
      features: ids by name.
      missing: the id that marks an example without a value; it is not counted.

    Returns:
      float32 `[B, dim]` by name, and how many ids were outside their table.
    """
    vectors: dict[str, tf.Tensor] = {}
    invalid: list[Counts] = []
    ordered = sorted(features, key=lambda name: (features[name].rows.name, features[name].lengths is None))
    for _, names in groupby(ordered, key=lambda name: features[name].rows.name):
        group = tuple(names)
        ids = _stacked([features[name] for name in group])
        gathered, outside = _gathered([features[name].rows for name in group], ids)
        vectors.update(zip(group, tf.unstack(gathered, len(group)), strict=True))
        invalid.append(Counts(group, tf.reduce_sum(tf.cast(outside & (ids != missing), tf.int64), 1)))
    return vectors, invalid


def _stacked(features: Sequence[SingleIds]) -> tf.Tensor:
    """Stack the ids to `[features, B]`, with -1 for missing tokens; features with lengths must come first."""
    with_lengths = sum(feature.lengths is not None for feature in features)
    ids = tf.stack([feature.ids for feature in features])
    if not with_lengths:
        return ids
    empty = tf.equal(tf.stack([feature.lengths for feature in features[:with_lengths]]), 0)
    tokens = tf.where(empty, tf.constant(-1, tf.int64), ids[:with_lengths])
    return tokens if with_lengths == len(features) else tf.concat([tokens, ids[with_lengths:]], 0)


def _gathered(rows: Sequence[Rows], ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Gather the rows of ids `[features, B]` from the block of all these tables.

    Returns:
      float32 `[features, B, dim]`, zeros for ids outside their table; and which ids are outside, bool `[features, B]`.
    """
    outside = tf.bitcast(ids, tf.uint64) >= size_constant([[row.count] for row in rows], tf.uint64)
    places = ids + size_constant([[row.start] for row in rows], tf.int64)
    zeros = rows[0].zeros
    places = tf.where(outside, size_constant(zeros or 0, tf.int64), places)
    vectors = decoded(rows[0].at(places))
    if zeros is None:
        indices = tf.where(outside)
        filling = tf.zeros([tf.shape(indices)[0], vectors.shape[-1]], vectors.dtype)
        vectors = tf.tensor_scatter_nd_update(vectors, indices, filling)
    return vectors, outside


def look_up_sequence(rows: Rows, ids: tf.RaggedTensor, length: int) -> tf.Tensor:
    """Look up the first `length` ids of each example, float32 `[B, length, dim]`; zeros for other positions."""
    padded = ids.to_tensor(default_value=-1, shape=[None, length])
    gathered, _ = _gathered([rows], tf.reshape(padded, [1, -1]))
    return tf.reshape(gathered, [-1, length, gathered.shape[-1]])


def look_up_lists(features: Mapping[str, ListedIds]) -> tuple[dict[str, tf.Tensor], list[Counts]]:
    """Return the combined rows of each example, float32 `[B, dim]` by name, and how many ids were dropped."""
    if not features:
        return {}, []
    names = sorted(features, key=lambda name: features[name].unit)
    ordered = [features[name] for name in names]
    splits = tf.stack([feature.ids.row_splits for feature in ordered])
    batch = tf.shape(splits, tf.int64)[1] - 1
    places, segments, dropped = _filtered(ordered, splits, batch)
    sizes = [len(list(group)) for _, group in groupby(ordered, key=lambda feature: feature.unit)]
    parts = _parts(places, segments, splits[:, -1] - dropped, sizes) if len(sizes) > 1 else [(places, segments)]
    vectors: list[tf.Tensor] = []
    for size, (place, segment) in zip(sizes, parts, strict=True):
        first = len(vectors)
        combined = _combined(ordered[first], place, segment - first * batch if first else segment, size * batch)
        vectors += tf.unstack(tf.reshape(combined, [size, batch, combined.shape[-1]]), size)
    return dict(zip(names, vectors, strict=True)), [Counts(tuple(names), dropped)]


def _filtered(
    features: Sequence[ListedIds], splits: tf.Tensor, batch: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the positions of the valid ids in the block, their segments, and how many ids were dropped, by feature.

    The segment of an id is feature * B + example. `splits` holds the row splits of each feature, `[features, B + 1]`.
    """
    count, sizes = len(features), splits[:, -1]
    offsets = tf.cumsum(sizes, exclusive=True)
    ids = tf.concat([feature.ids.values for feature in features], 0)
    ends = tf.reshape(splits[:, 1:] + offsets[:, tf.newaxis], [-1])
    segments = segments_of_splits(tf.concat([tf.zeros([1], tf.int64), ends], 0), ids)
    places = ids + _of_each([feature.rows.start for feature in features], offsets, sizes)
    valid = _valid(features, ids, offsets, sizes)

    def without() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        keep = tf.where(valid)
        lost = tf.math.unsorted_segment_sum(tf.cast(~valid, tf.int64), segments // batch, count)
        return tf.gather_nd(places, keep), tf.gather_nd(segments, keep), lost

    def all_of_them() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return tf.identity(places), tf.identity(segments), tf.zeros([count], tf.int64)

    kept, rows, lost = tf.cond(tf.reduce_all(valid), all_of_them, without)
    return kept, rows, lost


def _of_each(facts: Sequence[int], offsets: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Repeat a number of each feature for each of its ids, int64 `[N]`.

    The ids of a feature start at its entry of `offsets`, and its entry of `sizes` is their number. The result is
    computed as ranges that start at number + offset, minus the position of each id: five times as fast as a gather.
    """
    first = offsets + size_constant(facts, tf.int64)
    ranges = tf.raw_ops.RaggedRange(starts=first, limits=first + sizes, deltas=tf.ones([], tf.int64)).rt_dense_values
    return ranges - tf.range(offsets[0], offsets[-1] + sizes[-1])


def _valid(features: Sequence[ListedIds], ids: tf.Tensor, offsets: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Return which ids are valid, bool `[N]`: with lengths, those of non-empty tokens, else those in their table."""
    lengths = [feature.lengths for feature in features if feature.lengths is not None]
    with_lengths = len(lengths)
    tokens = [tf.greater(tf.concat(lengths, 0), 0)] if with_lengths else []
    if with_lengths == len(features):
        return tokens[0]
    limits = _of_each(
        [feature.rows.count for feature in features[with_lengths:]], offsets[with_lengths:], sizes[with_lengths:]
    )
    bounded = ids[offsets[with_lengths] :] if with_lengths else ids
    inside = tf.less(tf.bitcast(bounded, tf.uint64), tf.bitcast(limits, tf.uint64))
    return tf.concat([*tokens, inside], 0) if with_lengths else inside


def _parts(
    places: tf.Tensor, segments: tf.Tensor, counts: tf.Tensor, sizes: Sequence[int]
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Split positions and segments by unit; `counts` has the ids of each feature, `sizes` the features of each unit."""
    owner = [number for number, size in enumerate(sizes) for _ in range(size)]
    left = tf.math.segment_sum(counts, tf.constant(owner))
    number = len(sizes)
    return list(zip(tf.split(places, left, num=number), tf.split(segments, left, num=number), strict=True))


def _combined(feature: ListedIds, places: tf.Tensor, segments: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    if feature.rows.block.dtype == tf.float32 and not feature.rows.updated:
        return combine_in_order(feature.rows.block.read_value(), segments, count, feature.combiner, places=places)
    return combine_in_order(decoded(feature.rows.at(places)), segments, count, feature.combiner)

"""Looks up all features of an exported model together, in few operations: fast paths of `lookup.combine`.

At a batch of one a lookup costs as much as the number of its operations, so all that can be done once for all features
is done once. Tables of equal dim follow each other in one *block* (`table_blocks`), and the features of a block are
looked up together: an id becomes a place in the block, and one operation gathers, or combines, the rows of all of them.

========================  ==============================================================================
features                  operations for all features of a block
========================  ==============================================================================
of one value, `[B]`       the ids as `[features, B]`, one comparison with the tables' rows, one gather
of several, ragged        the ids as one list, filtered only if there is something to drop; one operation gathers
                          and combines
========================  ==============================================================================

A block is read whole (`read_value`, which copies nothing) and then gathered from. Gathering from the variable itself
would make it one that is copied at every other reading: TensorFlow's copy-on-read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import tensorflow as tf

from embedding_core.config import Combiner
from embedding_core.lookup import combine_in_order
from embedding_core.normal_form import segments_of_splits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """The place of a table's rows in a block.

    Attributes:
      block: variable `[all rows, dim]`.
      name: name of the block.
      start: the place of the table's first row in it.
      count: how many rows the table has.
      nothing: the place of a row of zeros in the block, or None.
    """

    block: tf.Variable
    name: str
    start: int
    count: int
    nothing: int | None = None

    def read(self) -> tf.Tensor:
        """Return the table's rows, float32 `[count, dim]`."""
        return _float32(self.block.read_value()[self.start : self.start + self.count])


class Counts(NamedTuple):
    """A number for each of some features, int64 `[features]`."""

    features: tuple[str, ...]
    counts: tf.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Single:
    """The ids of one feature of one value.

    Attributes:
      rows: rows of the table.
      ids: int64 `[B]`; one outside the table gives zeros.
      lengths: int32 `[B]`, bytes of the tokens, if the id does not show that an example has no token.
    """

    rows: Rows
    ids: tf.Tensor
    lengths: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Several:
    """The ids of one feature of any number of values, whose rows are combined.

    Attributes:
      rows: rows of the table.
      ids: int64 `[B, None]`; one outside the table counts as not there.
      lengths: int32 `[N]`, bytes of the tokens, if the id does not show whether there is a token.
      combiner: how several rows become one.
    """

    rows: Rows
    ids: tf.RaggedTensor
    lengths: tf.Tensor | None = None
    combiner: Combiner

    @property
    def unit(self) -> tuple[bool, str, str]:
        """What features that are combined by one operation have in common."""
        return self.lengths is None, self.rows.name, self.combiner


def is_row(ids: tf.Tensor, rows: Any) -> tf.Tensor:
    """Whether ids are in 0 .. rows - 1; as unsigned numbers, the negative ones are the largest."""
    return tf.less(tf.bitcast(ids, tf.uint64), tf.constant(rows, tf.uint64))


def look_up_single(features: Mapping[str, Single], missing: int) -> tuple[dict[str, tf.Tensor], list[Counts]]:
    """Look up the row of each id; zeros for an absent id, or one outside its table.

    Args:
      features: ids by name.
      missing: the id of an example without an id.

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


def _stacked(features: Sequence[Single]) -> tf.Tensor:
    """Return the ids `[features, B]`, -1 for no token; first the features that have lengths."""
    with_lengths = sum(one.lengths is not None for one in features)
    ids = tf.stack([one.ids for one in features])
    if not with_lengths:
        return ids
    empty = tf.equal(tf.stack([one.lengths for one in features[:with_lengths]]), 0)
    tokens = tf.where(empty, tf.constant(-1, tf.int64), ids[:with_lengths])
    return tokens if with_lengths == len(features) else tf.concat([tokens, ids[with_lengths:]], 0)


def _gathered(rows: Sequence[Rows], ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the rows of ids `[features, B]`, float32 `[features, B, dim]`, and which ids are outside their table."""
    outside = tf.bitcast(ids, tf.uint64) >= tf.constant([[one.count] for one in rows], tf.uint64)
    places = ids + tf.constant([[one.start] for one in rows], tf.int64)
    nothing = rows[0].nothing
    places = tf.where(outside, tf.constant(nothing or 0, tf.int64), places)
    vectors = tf.gather(rows[0].block.read_value(), places)
    if nothing is None:
        indices = tf.where(outside)
        zeros = tf.zeros([tf.shape(indices)[0], vectors.shape[-1]], vectors.dtype)
        vectors = tf.tensor_scatter_nd_update(vectors, indices, zeros)
    return _float32(vectors), outside


def look_up_sequence(rows: Rows, ids: tf.RaggedTensor, length: int) -> tf.Tensor:
    """Look up the first ids of each example in sequence, float32 `[B, length, dim]`; zeros elsewhere."""
    padded = ids.to_tensor(default_value=-1, shape=[None, length])
    gathered, _ = _gathered([rows], tf.reshape(padded, [1, -1]))
    return tf.reshape(gathered, [-1, length, gathered.shape[-1]])


def look_up_several(features: Mapping[str, Several]) -> tuple[dict[str, tf.Tensor], list[Counts]]:
    """Combine the rows of each example, float32 `[B, dim]` by name, and how many ids were dropped."""
    if not features:
        return {}, []
    names = sorted(features, key=lambda name: features[name].unit)
    ordered = [features[name] for name in names]
    splits = tf.stack([one.ids.row_splits for one in ordered])
    batch = tf.shape(splits, tf.int64)[1] - 1
    places, segments, dropped = _filtered(ordered, splits, batch)
    sizes = [len(list(group)) for _, group in groupby(ordered, key=lambda one: one.unit)]
    parts = _parts(places, segments, splits[:, -1] - dropped, sizes) if len(sizes) > 1 else [(places, segments)]
    vectors: list[tf.Tensor] = []
    for size, (place, segment) in zip(sizes, parts, strict=True):
        first = len(vectors)
        combined = _combined(ordered[first], place, segment - first * batch if first else segment, size * batch)
        vectors += tf.unstack(tf.reshape(combined, [size, batch, combined.shape[-1]]), size)
    return dict(zip(names, vectors, strict=True)), [Counts(tuple(names), dropped)]


def _filtered(
    features: Sequence[Several], splits: tf.Tensor, batch: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the places of the ids that count, the row of each, and how many ids were dropped, int64 `[features]`.

    A row is feature * B + example. `splits` has the places at which its ids begin and end, `[features, B + 1]`.
    """
    count, sizes = len(features), splits[:, -1]
    offsets = tf.cumsum(sizes, exclusive=True)
    ids = tf.concat([one.ids.values for one in features], 0)
    ends = tf.reshape(splits[:, 1:] + offsets[:, tf.newaxis], [-1])
    segments = segments_of_splits(tf.concat([tf.zeros([1], tf.int64), ends], 0), ids)
    places = ids + _of_each([one.rows.start for one in features], offsets, sizes)
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
    """Repeat the fact of each feature for each of its ids, int64 `[N]`; a feature has `sizes` ids, from `offsets` on.

    Computes it as ranges that begin at fact + offset, less the position of the id: five times as fast as a gather.
    """
    first = offsets + tf.constant(facts, tf.int64)
    ranges = tf.raw_ops.RaggedRange(starts=first, limits=first + sizes, deltas=tf.ones([], tf.int64)).rt_dense_values
    return ranges - tf.range(offsets[0], offsets[-1] + sizes[-1])


def _valid(features: Sequence[Several], ids: tf.Tensor, offsets: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Tell which ids count, bool `[N]`: tokens that are there, and ids inside their table."""
    lengths = [one.lengths for one in features if one.lengths is not None]
    with_lengths = len(lengths)
    tokens = [tf.greater(tf.concat(lengths, 0), 0)] if with_lengths else []
    if with_lengths == len(features):
        return tokens[0]
    limits = _of_each([one.rows.count for one in features[with_lengths:]], offsets[with_lengths:], sizes[with_lengths:])
    bounded = ids[offsets[with_lengths] :] if with_lengths else ids
    inside = tf.less(tf.bitcast(bounded, tf.uint64), tf.bitcast(limits, tf.uint64))
    return tf.concat([*tokens, inside], 0) if with_lengths else inside


def _parts(
    places: tf.Tensor, segments: tf.Tensor, counts: tf.Tensor, sizes: Sequence[int]
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Places and segments of each unit, which has so many features; `counts` is the number of ids of each feature."""
    owner = [number for number, size in enumerate(sizes) for _ in range(size)]
    left = tf.math.segment_sum(counts, tf.constant(owner))
    number = len(sizes)
    return list(zip(tf.split(places, left, num=number), tf.split(segments, left, num=number), strict=True))


def _combined(one: Several, places: tf.Tensor, segments: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    block = one.rows.block.read_value()
    if block.dtype == tf.float32:
        return combine_in_order(block, segments, count, one.combiner, places=places)
    return combine_in_order(_float32(tf.gather(block, places)), segments, count, one.combiner)


def _float32(rows: tf.Tensor) -> tf.Tensor:
    return rows if rows.dtype == tf.float32 else tf.cast(rows, tf.float32)

"""Counts tokens batch by batch in one TensorFlow graph, adds them up on a worker, and sends the sums to be merged.

The graph counts all features at once. Values are deduplicated before they become tokens: `tokens_of` works value by
value, so a token of a distinct value counts as often as the value occurs. Features of the same dtype and separator are
concatenated and share one call of `tokens_of`, so that the graph stays small however many features there are. The graph
returns a handful of tensors, with all token bytes in one string. If there are base vocabularies, the graph also looks
the tokens up in them, and counts the tokens that are not there.

What one worker counts is sent as messages, which are merged by vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow_hotfix  # noqa: F401  # without it, pyarrow 10 runs code that an Arrow message holds (CVE-2023-47248)
import tensorflow as tf

from components.vocabulary_gen.counting_plan import CountedFeature, CountingPlan
from embedding_core.columns import TokenTable, Values, parse_spec, rows_of, tokens_of
from embedding_core.config import ColumnConfig
from embedding_core.schema import Json
from embedding_core.vocabulary import partition_of

Counted: TypeAlias = "dict[str, tf.Tensor]"
CountBatch: TypeAlias = Callable[..., Counted]
Transform: TypeAlias = "Callable[[tf.Tensor], Mapping[str, Values]]"
BaseTables: TypeAlias = "Mapping[str, TokenTable]"
"""Lookup table of the tokens of each base vocabulary, by its name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchCounts:
    """Counts of one batch for one feature.

    Attributes:
      tokens: large_binary [n], not necessarily distinct.
      counts: int64 [n], how often each token occurs.
      histogram: int64 [longest + 1], how many rows have 0, 1, ... tokens.
      widest: largest number of values in a row of the column.
      new_rows: number of rows with a token that the base vocabulary does not have; 0 without a base vocabulary.
      new_tokens: number of occurrences of such tokens; 0 without a base vocabulary.
    """

    tokens: pa.Array
    counts: npt.NDArray[np.int64]
    histogram: npt.NDArray[np.int64]
    widest: int
    new_rows: int = 0
    new_tokens: int = 0


def counting_function(
    features: Sequence[CountedFeature], transform: Transform | None, base: BaseTables | None
) -> CountBatch:
    """Make a graph function that counts a batch of serialized tf.Examples.

    Args:
      features: what to count, each column with the dtype of the data.
      transform: function from serialized tf.Examples to Transform's output; None without columns `after_transform`.
      base: lookup tables of the base vocabularies; None without a base.

    Returns:
      A function from string [B] to what `batch_counts` reads; it raises one of `examples_counter.PARSE_ERRORS`
      when an example does not parse.

    Raises:
      DataError: a column cannot be read with its dtype.
    """
    spec = parse_spec(feature.column for feature in features)

    def count(records: tf.Tensor) -> Counted:
        raw = tf.io.parse_example(records, spec) if spec else {}
        transformed = transform(records) if transform is not None else {}
        columns = [feature.column for feature in features]
        values = [(transformed if c.after_transform else raw)[c.name] for c in columns]
        return count_values(features, values, base)

    traced: CountBatch = tf.function(count, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    return traced


def count_values(
    features: Sequence[CountedFeature], values: Sequence[Values], base: BaseTables | None = None
) -> Counted:
    """Count the tokens of one batch, in the graph.

    Args:
      features: what to count, each column with the dtype of the data.
      values: the values of each feature's column: [B], or dense, sparse or ragged [B, None].
      base: lookup tables of the base vocabularies; None without a base.

    Returns:
      Tensors over all columns, in the order of `_by_kind`: "bytes" string [], all tokens concatenated;
      "lengths" [n] of each token in bytes; "counts" [n]; "tokens" [columns], number of tokens of each;
      "rows" [columns, longest + 1], histogram of tokens per row; "widest" [columns], most values in a row; with a
      base also "new_rows" and "new_tokens" [columns].
    """
    groups, columns = [], [feature.column for feature in features]
    for kind in _by_kind(columns):
        rows = [rows_of(columns[position], values[position]) for position in kind]
        tables = None if base is None else [base.get(features[position].vocabulary) for position in kind]
        groups.append(_count_group(columns[kind[0]], rows, tables))
    joined = {key: tf.concat([group[key] for group in groups], 0) for key in groups[0]}
    text, per_row = joined.pop("text"), joined.pop("per_row")
    return {
        **joined,
        "bytes": tf.strings.reduce_join(text),
        "lengths": tf.strings.length(text),
        "rows": tf.math.bincount(tf.cast(per_row, tf.int32), axis=-1, dtype=tf.int64),
    }


def _by_kind(columns: Sequence[ColumnConfig]) -> list[list[int]]:
    """Group the positions of the columns by the conversion of their values to tokens."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for position, column in enumerate(columns):
        kinds.setdefault(tuple(column.conversion.values()), []).append(position)
    return list(kinds.values())


def _count_group(
    column: ColumnConfig, rows: Sequence[tf.RaggedTensor], base: Sequence[TokenTable | None] | None
) -> Counted:
    """Count the concatenated values of columns of one kind."""
    uniques = [tf.unique_with_counts(_hashable(values.values)) for values in rows]
    sizes = tf.stack([tf.size(unique.y) for unique in uniques])
    distinct = tf.concat([unique.y for unique in uniques], 0)
    tokens = tokens_of(column, _unhashable(column, distinct))
    per_value = tokens.row_lengths()
    widths = tf.stack([values.row_lengths() for values in rows])

    def over_rows(of_value: tf.Tensor) -> tf.Tensor:
        """Sum `of_value`, a number for each distinct value, over the values of each row: [columns, B]."""
        starts = tf.unstack(tf.cumsum(sizes, exclusive=True), len(rows))
        index = tf.concat([unique.idx + start for unique, start in zip(uniques, starts, strict=True)], 0)
        return tf.reshape(_sums(tf.gather(of_value, index), tf.reshape(widths, [-1])), tf.shape(widths))

    counted = {
        "text": tokens.values,
        "counts": tf.repeat(tf.concat([unique.count for unique in uniques], 0), per_value),
        "tokens": _sums(per_value, sizes),
        # In most data each value is one token, and then a row has as many tokens as values.
        "per_row": tf.cond(tf.reduce_all(tf.equal(per_value, 1)), lambda: widths, lambda: over_rows(per_value)),
        "widest": tf.reduce_max(widths, axis=1),
    }
    if base is not None:
        new = _not_in(base, tokens.values, counted["tokens"])
        counted["new_tokens"] = _sums(new * tf.cast(counted["counts"], tf.int64), counted["tokens"])
        counted["new_rows"] = tf.math.count_nonzero(over_rows(_sums(new, per_value)), axis=1)
    return counted


def _not_in(base: Sequence[TokenTable | None], tokens: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Return 1 for each token that its column's table does not have, else 0 (also without a table), int64 [tokens]."""
    parts = [
        tf.zeros_like(part, tf.int64) if table is None else tf.cast(table.ids_of(part) < 0, tf.int64)
        for table, part in zip(base, tf.split(tokens, sizes, num=len(base)), strict=True)
    ]
    return tf.concat(parts, 0)


def _hashable(values: tf.Tensor) -> tf.Tensor:
    """Convert floats to their bits, so that NaNs with the same bits are one value."""
    return tf.bitcast(values, tf.int32) if values.dtype == tf.float32 else values


def _unhashable(column: ColumnConfig, values: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(values, tf.float32) if column.dtype == "float32" else values


def _sums(values: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Sum consecutive segments of int64 [n] that have the given lengths; int64 [number of segments]."""
    running = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(values)], 0)
    ends = tf.cumsum(tf.cast(lengths, tf.int64))
    return tf.gather(running, ends) - tf.gather(running, ends - tf.cast(lengths, tf.int64))


def batch_counts(features: Sequence[CountedFeature], counted: Counted) -> Iterator[tuple[CountedFeature, BatchCounts]]:
    """Split the result of `count_values` by feature, without copying the tokens.

    Args:
      features: the features that were counted.
      counted: the tensors, evaluated.

    Yields:
      Each feature with its counts.
    """
    arrays: Json = {key: tensor.numpy() for key, tensor in counted.items()}
    offsets = np.concatenate([[0], np.cumsum(arrays["lengths"], dtype=np.int64)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(arrays["bytes"])]
    tokens = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    ends = np.cumsum(arrays["tokens"])
    order = itertools.chain.from_iterable(_by_kind([feature.column for feature in features]))
    for place, position in enumerate(order):
        start, end = ends[place] - arrays["tokens"][place], ends[place]
        yield (
            features[position],
            BatchCounts(
                tokens=tokens[start:end],
                counts=arrays["counts"][start:end].astype(np.int64),
                histogram=arrays["rows"][place],
                widest=int(arrays["widest"][place]),
                **{key: int(arrays[key][place]) for key in ("new_rows", "new_tokens") if key in arrays},
            ),
        )


# Adds up token counts in Arrow arrays; memory grows with the number of distinct tokens, not of rows.

_PENDING_LIMIT = 1 << 20
_BYTES_PER_MESSAGE = 1 << 26

Part = tuple[pa.Array, npt.NDArray[np.int64]]


def merge_counts(parts: Iterable[Part]) -> Part:
    """Add up parts of (large_binary tokens, int64 counts); each token of the result occurs once, in any order."""
    filled = [(tokens, counts) for tokens, counts in parts if len(tokens)]
    if not filled:
        return pa.array([], pa.large_binary()), np.zeros(0, np.int64)
    chunks = pa.chunked_array([tokens for tokens, _ in filled]).dictionary_encode().chunks
    distinct = chunks[-1].dictionary
    index = np.concatenate([chunk.indices.to_numpy() for chunk in chunks])
    # Sums of whole numbers in float64 are exact below 2**53 occurrences of one token.
    sums = np.bincount(index, weights=np.concatenate([counts for _, counts in filled]), minlength=len(distinct))
    return distinct, sums.astype(np.int64)


class TokenCounts:
    """Running sums of token counts by vocabulary.

    Parts are collected, and merged when they hold more tokens than the result of the last merge (and more
    than a million), so that a token is hashed only a few times. All vocabularies are merged at once, because
    their parts share buffers.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[Part]] = {}
        self._pending = 0
        self._merged = 0

    def add(self, vocabulary: str, tokens: pa.Array, counts: npt.NDArray[np.int64]) -> None:
        """Add counts of tokens, which need not be distinct."""
        self._parts.setdefault(vocabulary, []).append((tokens, counts))
        self._pending += len(tokens)

    def compact(self, *, always: bool = False) -> None:
        """Merge what was added, if `always` or if it outgrew the last merge; call it after each batch."""
        if not always and self._pending <= max(_PENDING_LIMIT, self._merged):
            return
        self._parts = {name: [merge_counts(parts)] for name, parts in self._parts.items()}
        self._pending, self._merged = 0, sum(len(parts[0][0]) for parts in self._parts.values())

    def items(self) -> Iterator[tuple[str, Part]]:
        """Yield each vocabulary with its distinct tokens and their counts."""
        self.compact(always=True)
        for name, parts in self._parts.items():
            yield name, parts[0]


def write_counts(tokens: pa.Array, counts: npt.NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the counts as Arrow messages of about 64 MB each, for transport."""
    rows = max(1, len(tokens) * _BYTES_PER_MESSAGE // max(1, tokens.nbytes))
    for start in range(0, len(tokens), rows):
        part = slice(start, start + rows)
        batch = pa.record_batch([tokens[part], pa.array(counts[part])], ["token", "count"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield sink.getvalue().to_pybytes()


def read_counts(message: bytes) -> Part:
    """Return the tokens and counts in one message of `write_counts`, without copying."""
    table = pa.ipc.open_stream(message).read_all().combine_chunks()
    token, count = (table[name].chunk(0) for name in ("token", "count"))
    return token, count.to_numpy()


# Gathers what one worker counts, and sends it as messages to be merged by vocabulary.

TOKENS, FACTS = b"T", b"F"
"""First byte of a message: T for an Arrow message of counts, F for facts in JSON."""

SOURCES = ""
"""Key of the facts on the sources; all other keys are vocabularies, or parts of them ("<name>\n<part>")."""

_BAD_ROWS_NAMED = 1000


def add_histograms(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of two histograms of any lengths."""
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    total = longer.astype(np.int64)
    total[: len(shorter)] += shorter
    return total


class SourceCounts:
    """The counts of one source (a file, or one worker's share of the batches), batch after batch.

    Attributes:
      rows: number of good rows counted.
    """

    def __init__(self, plan: CountingPlan, source: str) -> None:
        self.rows = 0
        self._plan = plan
        self._source = source
        self._tokens = TokenCounts()
        self._histograms = {feature.name: np.zeros(1, np.int64) for feature in plan.features}
        self._widest = dict.fromkeys(self._histograms, 0)
        self._new_rows = dict.fromkeys(self._histograms, 0)
        self._new_tokens = dict.fromkeys(self._histograms, 0)
        self._dtypes: dict[str, dict[str, str]] = {name: {} for name in self._histograms}
        self._bad: dict[int, str] = {}
        self._bad_rows = 0
        self._problem: str | None = None

    def add_batch(self, rows: int, counts: Iterable[tuple[CountedFeature, BatchCounts]]) -> None:
        """Add the counts of one batch of good rows."""
        self.rows += rows
        for feature, batch in counts:
            self._tokens.add(feature.vocabulary, batch.tokens, batch.counts)
            self._histograms[feature.name] = add_histograms(self._histograms[feature.name], batch.histogram)
            self._widest[feature.name] = max(self._widest[feature.name], batch.widest)
            self._new_rows[feature.name] += batch.new_rows
            self._new_tokens[feature.name] += batch.new_tokens
        self._tokens.compact()

    def add_dtype(self, feature: str, dtype: str, where: str) -> None:
        """Record the dtype of a feature's column, and the place of its first value of that dtype."""
        self._dtypes[feature].setdefault(dtype, where)

    def add_bad(self, bad: Mapping[int, str]) -> None:
        """Set bad rows aside: all are counted, the first thousand of each source are named."""
        self._bad_rows += len(bad)
        self._bad.update(list(bad.items())[: _BAD_ROWS_NAMED - len(self._bad)])

    def set_problem(self, message: str) -> None:
        """Record why the source cannot be used at all."""
        self._problem = message

    def messages(self) -> Iterator[tuple[str, bytes]]:
        """Yield the results, keyed by vocabulary; those on the source itself are keyed by `SOURCES`."""
        yield (
            SOURCES,
            _facts(
                source=self._source,
                rows=self.rows,
                bad_rows=self._bad_rows,
                bad=sorted(self._bad.items()),
                problem=self._problem,
            ),
        )
        if self._problem is not None:
            return
        for feature in self._plan.features:
            yield (
                feature.vocabulary,
                _facts(
                    feature=feature.name,
                    histogram=self._histograms[feature.name].tolist(),
                    widest=self._widest[feature.name],
                    new_rows=self._new_rows[feature.name],
                    new_tokens=self._new_tokens[feature.name],
                    dtypes=self._dtypes[feature.name],
                ),
            )
        for vocabulary, counts in self._tokens.items():
            for key, part in _parts(vocabulary, counts, self._plan.rules[vocabulary].parts):
                for message in write_counts(*part):
                    yield key, TOKENS + message


def _parts(vocabulary: str, counted: Part, parts: int) -> Iterator[tuple[str, Part]]:
    """Yield the counts by the key that they are merged under: the vocabulary, or one part of it."""
    if parts == 1:
        yield vocabulary, counted
        return
    tokens, counts = counted
    part_of_token = partition_of(tokens, parts)
    for part in np.unique(part_of_token):
        rows = np.flatnonzero(part_of_token == part)
        yield f"{vocabulary}\n{part:05d}", (tokens.take(pa.array(rows)), counts[rows])


def _facts(**facts: Any) -> bytes:
    return FACTS + json.dumps(facts).encode()

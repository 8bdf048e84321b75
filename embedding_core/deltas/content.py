"""Finds what changed between two states of a served model, and writes it as the bytes of a delta."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
from google.protobuf.message import DecodeError

from embedding_core.deltas.protocol import DeltaError
from embedding_core.deltas.served_state import (
    GONE,
    Array,
    Layout,
    ServedState,
    TableLayout,
    TableState,
    hashes_of,
    with_changes,
)
from embedding_core.errors import CheckpointError
from embedding_core.varints import from_varints, varints

# The bytes of a delta's content: a serialized tf.Example of four strings, which a graph can parse.
#
# `numbers` are varints: the number of changed rows, of tokens that came and of tokens that went, table by table in the
# order of the layout; the number of dense variables that changed; then, table by table, the changed rows and the rows
# of the tokens that came; and the dense variables that changed. Of each ascending list there are the gaps: the first
# number, then how far each is from the one before it. `values` are the changed rows, `tokens` the tokens that came and
# those that went, each followed by a line break, and `dense` the dense variables; all numbers in them are
# little-endian.

NUMBERS, VALUES, TOKENS, DENSE = "numbers", "values", "tokens", "dense"
BITS = 35
"""How many bits a number may have: 5 groups."""
COUNTS = 3
"""How many counts there are for each table."""
LARGEST = 2**31 - 2**10
"""How many bytes the strings may have: protobuf writes messages of less than 2 GiB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableContent:
    """What a delta says of one table.

    Attributes:
      rows: `[n]`, ascending, the changed rows.
      values: the bytes of what these rows become.
      came: the tokens that came.
      came_rows: `[len(came)]`, ascending, their rows.
      went: the tokens that went.
    """

    rows: npt.NDArray[Any]
    values: bytes
    came: Sequence[bytes]
    came_rows: npt.NDArray[Any]
    went: Sequence[bytes]


def write_content(tables: Sequence[TableContent], dense: Sequence[int], weights: Sequence[bytes]) -> bytes:
    """Serialize a delta.

    Args:
      tables: what changed in each table, in the order of the layout.
      dense: the numbers of the dense variables that changed, ascending.
      weights: the bytes of each of them.

    Raises:
      DeltaError: there are too many bytes for one message.
    """
    counts = [count for table in tables for count in (len(table.rows), len(table.came), len(table.went))]
    lists = [numbers for table in tables for numbers in (table.rows, table.came_rows)]
    numbers = np.concatenate([[*counts, len(dense)], *map(_gaps, [*lists, np.array(dense, np.int64)])])
    texts = {
        NUMBERS: varints(numbers.astype(np.uint64))[0].tobytes(),
        VALUES: b"".join(table.values for table in tables),
        TOKENS: b"".join(token + b"\n" for table in tables for token in (*table.came, *table.went)),
        DENSE: b"".join(weights),
    }
    size = sum(map(len, texts.values()))
    if size > LARGEST:
        raise DeltaError(f"the delta has {size} bytes: a message may have {LARGEST}.")
    example = tf.train.Example()
    for name, text in texts.items():
        if text:
            example.features.feature[name].bytes_list.value.append(text)
    content: bytes = example.SerializeToString(deterministic=True)
    return content


def read_content(
    content: bytes, row_bytes: Sequence[int], dense_bytes: Sequence[int]
) -> tuple[list[TableContent], dict[int, bytes]]:
    """Parse what `write_content` returned.

    Args:
      content: the content.
      row_bytes: the number of bytes of a row of each table.
      dense_bytes: the number of bytes of each dense variable.

    Returns:
      What changed in each table, and the bytes of the dense variables that changed, by number.

    Raises:
      ValueError: the content does not fit these tables.
    """
    features = tf.train.Example.FromString(content).features.feature
    texts = {name: bytes(feature.bytes_list.value[0]) for name, feature in features.items()}
    numbers = from_varints(texts.get(NUMBERS, b"")).astype(np.int64)
    if ((numbers < 0) | (numbers >> BITS > 0)).any():
        raise ValueError("a number is too large")
    head = COUNTS * len(row_bytes) + 1
    counts = numbers[: head - 1].reshape(-1, COUNTS)
    lists = iter(_split(numbers[head:], [*counts[:, :2].ravel(), numbers[head - 1]]))
    values = iter(_parts(texts.get(VALUES, b""), counts[:, 0] * np.array(row_bytes)))
    tokens = iter(texts.get(TOKENS, b"").split(b"\n")[:-1])
    tables = [
        TableContent(
            rows=np.cumsum(next(lists)),
            values=next(values),
            came=[next(tokens) for _ in range(came)],
            came_rows=np.cumsum(next(lists)),
            went=[next(tokens) for _ in range(went)],
        )
        for _, came, went in counts
    ]
    given = np.cumsum(next(lists)).tolist()
    weights = _parts(texts.get(DENSE, b""), [dense_bytes[number] for number in given])
    return tables, dict(zip(given, weights, strict=True))


def _gaps(ascending: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.diff(ascending.astype(np.int64), prepend=0)


def _split(numbers: npt.NDArray[np.int64], sizes: Sequence[int]) -> Iterator[npt.NDArray[np.int64]]:
    if sum(sizes) != len(numbers):
        raise ValueError(f"there are {len(numbers)} numbers for {sum(sizes)}")
    yield from np.split(numbers, np.cumsum(sizes)[:-1])


def _parts(content: bytes, sizes: Any) -> Iterator[bytes]:
    if sum(sizes) != len(content):
        raise ValueError(f"there are {len(content)} bytes for {sum(sizes)}")
    ends = np.cumsum(sizes, dtype=np.int64)
    for end, size in zip(ends, sizes, strict=True):
        yield content[end - size : end]


# Finds what changed between two states of a served model: the content of a delta.

_SHOWN = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableChange:
    """The changes of one table.

    Attributes:
      rows: int32 `[n]`, ascending.
      values: `[n, dim]`, what these rows become.
      tokens: the tokens that came, then those that went.
      token_rows: int32 `[m]`, the row of each, ascending for those that came; -1 for those that went.
    """

    rows: npt.NDArray[np.int32]
    values: Array
    tokens: tuple[bytes, ...]
    token_rows: npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delta:
    """The changes from one state to another.

    Attributes:
      tables: by name; all tables of the model.
      dense: the dense variables that changed, by number.
    """

    tables: Mapping[str, TableChange]
    dense: Mapping[int, Array]

    @property
    def changed_bytes(self) -> int:
        """The number of bytes of the changed rows, tokens and dense weights alone."""
        tables = sum(table.values.nbytes + sum(map(len, table.tokens)) for table in self.tables.values())
        return tables + sum(value.nbytes for value in self.dense.values())

    def counts(self) -> dict[str, dict[str, int]]:
        """Count, by table, the rows that change and the tokens that come and go."""
        return {
            name: {
                "rows": len(change.rows),
                "came": int(np.count_nonzero(change.token_rows >= 0)),
                "went": int(np.count_nonzero(change.token_rows < 0)),
            }
            for name, change in self.tables.items()
        }

    def to_bytes(self, layout: Layout) -> bytes:
        """Serialize the delta for the graph of that export, see `write_content`."""
        tables = [_content_of(self.tables[table.name]) for table in layout.tables]
        dense = sorted(self.dense)
        return write_content(tables, dense, [_little_endian(self.dense[number]) for number in dense])

    @classmethod
    def from_bytes(cls, content: bytes, state: ServedState) -> Delta:
        """Parse a delta that was written for the export of that state.

        Raises:
          CheckpointError: it does not fit the state.
        """
        likes = [state.tables[table.name].rows for table in state.layout.tables]
        sizes = [like.dtype.itemsize * like.shape[1] for like in likes]
        try:
            found, weights = read_content(content, sizes, [value.nbytes for value in state.dense])
            _require_rows_inside(found, likes)
        except (ValueError, KeyError, IndexError, StopIteration, DecodeError) as error:
            raise CheckpointError(f"a delta does not fit its version ({error}): push the model again.") from error
        tables = {
            table.name: TableChange(
                rows=change.rows.astype(np.int32),
                values=np.frombuffer(change.values, like.dtype).reshape(-1, like.shape[1]),
                tokens=(*change.came, *change.went),
                token_rows=np.append(change.came_rows, np.full(len(change.went), GONE)).astype(np.int32),
            )
            for table, like, change in zip(state.layout.tables, likes, found, strict=True)
        }
        dense = {
            number: np.frombuffer(value, state.dense[number].dtype).reshape(state.dense[number].shape)
            for number, value in weights.items()
        }
        return cls(tables=tables, dense=dense)

    def applied(self, state: ServedState) -> ServedState:
        """Return the state that the changes lead to; the given one stays as it is."""
        tables = {name: _applied(self.tables[name], table) for name, table in state.tables.items()}
        dense = tuple(self.dense.get(number, value) for number, value in enumerate(state.dense))
        return ServedState(layout=state.layout, tables=tables, dense=dense)

    @classmethod
    def between(cls, base: ServedState, new: ServedState) -> Delta:
        """Find what changed.

        Args:
          base: the state that is served; its rows stay where they are.
          new: the state of another export of the same graph; only its rows by token matter.

        Raises:
          DeltaError: no delta leads from one to the other: a table has other columns or raw ids, or too few spare rows
            for its new tokens, or a dense variable has another shape.
        """
        _require_same_kind(base, new)
        tables = {
            table.name: _change(table, base.tables[table.name], new.tables[table.name]) for table in base.layout.tables
        }
        dense = {
            number: value
            for number, (value, before) in enumerate(zip(new.dense, base.dense, strict=True))
            if value.tobytes() != before.tobytes()
        }
        return cls(tables=tables, dense=dense)


def _require_rows_inside(tables: Sequence[TableContent], likes: Sequence[Array]) -> None:
    for change, like in zip(tables, likes, strict=True):
        if max(change.rows.max(initial=0), change.came_rows.max(initial=0)) >= len(like):
            raise ValueError(f"a row is not among {len(like)}")


def _content_of(change: TableChange) -> TableContent:
    came = int(np.count_nonzero(change.token_rows != GONE))
    return TableContent(
        rows=change.rows,
        values=_little_endian(change.values),
        came=change.tokens[:came],
        came_rows=change.token_rows[:came],
        went=change.tokens[came:],
    )


def _little_endian(values: Array) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _applied(change: TableChange, state: TableState) -> TableState:
    rows = state.rows.copy()
    rows[change.rows] = change.values
    if state.tokens is None:
        return dataclasses.replace(state, rows=rows)
    tokens, places = with_changes(state.tokens, state.places, change.tokens, change.token_rows)
    return dataclasses.replace(state, rows=rows, tokens=tokens, places=places)


def _require_same_kind(base: ServedState, new: ServedState) -> None:
    _require_same_parts(base.layout.fixed, new.layout.fixed)
    if base.layout.dense != new.layout.dense or base.tables.keys() != new.tables.keys():
        raise DeltaError("the tables, or the shapes of the dense weights, are others.")
    for name, table in base.tables.items():
        other = new.tables[name]
        kinds = [(state.rows.dtype, state.rows.shape[1], len(state.unknown)) for state in (table, other)]
        if kinds[0] != kinds[1] or (table.tokens is None) != (other.tokens is None):
            raise DeltaError(f"table {name!r} has another dim, dtype or number of rows without a token.")


def _require_same_parts(base: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Refuse two exports of which something differs that deltas do not carry."""
    both = {**base, **new}
    changed = [f"{name!r} ({both[name].partition(' ')[0]})" for name in sorted(both) if base.get(name) != new.get(name)]
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise DeltaError(
            f"something changed that a delta does not carry: {', '.join(changed[:_SHOWN])}{more}; if Transform "
            "learned it from new data, `follow` keeps what Transform learned for `follow.full_run_every` runs."
        )


def _change(layout: TableLayout, base: TableState, new: TableState) -> TableChange:
    """Find what changed in a table: first the tokens, which decide where rows are, then the rows."""
    if base.tokens is None or new.tokens is None:
        return _rows_changed(base, np.stack([base.unknown, new.unknown], 1), new, (), np.zeros(0, np.int32))
    there = pc.fill_null(pc.index_in(new.tokens, value_set=base.tokens), -1).to_numpy(zero_copy_only=False)
    known, went = there >= 0, ~pc.is_in(base.tokens, value_set=new.tokens).to_numpy(zero_copy_only=False)
    places = np.where(known, np.append(base.places, -1)[there], -1)
    places[~known] = _free_rows(layout, base.places[~went], int(np.count_nonzero(~known)))
    came = new.tokens.filter(pa.array(~known)).to_pylist()
    tokens = (*came, *base.tokens.filter(pa.array(went)).to_pylist())
    _require_distinct_hashes(layout.name, tokens)
    token_rows = np.concatenate([places[~known], np.full(int(np.count_nonzero(went)), GONE)]).astype(np.int32)
    pairs = np.stack(
        [np.concatenate([places, base.unknown]), np.concatenate([new.places, new.unknown])], 1
    )  # row of the served table, row of the new table
    return _rows_changed(base, pairs, new, tokens, token_rows)


def _rows_changed(
    base: TableState, pairs: npt.NDArray[np.int64], new: TableState, tokens: tuple[bytes, ...], token_rows: Array
) -> TableChange:
    pairs = pairs[np.argsort(pairs[:, 0])]
    values = new.rows[pairs[:, 1]]
    bits = np.dtype(f"u{values.dtype.itemsize}")  # compares bits: 0.0 and -0.0 differ
    changed = (values.view(bits) != base.rows[pairs[:, 0]].view(bits)).any(axis=1)
    return TableChange(
        rows=pairs[changed, 0].astype(np.int32), values=values[changed], tokens=tokens, token_rows=token_rows
    )


def _free_rows(layout: TableLayout, used: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Choose rows for new tokens: those of tokens that went, then spare ones."""
    free = np.ones(layout.capacity, np.bool_)
    free[used] = False
    free[layout.tokens : (layout.tokens or 0) + layout.oov_rows] = False
    rows = np.flatnonzero(free)
    if len(rows) < count:
        raise DeltaError(
            f"table {layout.name!r} has {len(rows)} spare rows for {count} new tokens: raise `push.deltas.spare_rows`."
        )
    return rows[:count]


def _require_distinct_hashes(table: str, tokens: tuple[bytes, ...]) -> None:
    hashes = hashes_of(tf.constant(tokens, tf.string, shape=[len(tokens)])).numpy()
    if len(np.unique(hashes)) != len(tokens):
        raise DeltaError(f"two changed tokens of table {table!r} have the same hash.")

"""Finds the row of the previous run's table that each row of a new table continues from, and reorders rows."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from embedding_core.checkpoint.bundle import Rows, rows_per_slice
from embedding_core.config import TableConfig
from embedding_core.display import shown_token
from embedding_core.errors import CheckpointError
from embedding_core.schema import Json
from embedding_core.storage import scratch_folder
from embedding_core.training_config import NewRows
from embedding_core.vocabulary import Vocabulary

_SHOWN = 10
_TOKENS_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSources:
    """For each row of a new table, the row of the previous table that it is restored from.

    Attributes:
      table: the new table.
      rows: [rows of the new table] int64, the previous row, or -1 for a new row.
      vocabulary: vocabulary of the new table; None if its rows are raw ids.
      earlier: vocabulary of the previous rows; None for raw ids.
      kept: [tokens of the new vocabulary] bool mask of the tokens that had a row.
    """

    table: TableConfig
    rows: npt.NDArray[np.int64]
    vocabulary: Vocabulary | None
    earlier: Vocabulary | None
    kept: npt.NDArray[np.bool_]

    def name_of(self, row: int) -> bytes:
        """Return a unique name of a row: its token, or for other rows NUL plus a number (tokens cannot contain NUL)."""
        tokens = len(self.kept)
        if self.vocabulary is not None and row < tokens:
            return bytes(self.vocabulary.tokens[row].as_py())
        return b"\0%d" % (row - tokens)


def row_sources(
    table: TableConfig,
    earlier: TableConfig,
    vocabularies: Mapping[str, Vocabulary],
    earlier_vocabularies: Mapping[str, Vocabulary],
    new_rows: NewRows = "initializer",
) -> RowSources:
    """Find the previous row of every row of a table.

    A token that had a row continues from it. Out-of-vocabulary row j continues from row ``j % k`` of the k previous
    ones. If k divides the new number of these rows, every unknown token keeps its row; otherwise some get another
    token's row.

    Args:
      table: the new table.
      earlier: the previous table of the same name.
      vocabularies: the new vocabularies, by name.
      earlier_vocabularies: those that the previous rows belong to, by name.
      new_rows: what a token without a previous row starts from: the "initializer", or the "oov" row in which it was
        trained (if the previous table had any).

    Raises:
      CheckpointError: one of the tables has a vocabulary and the other raw ids, or both have raw ids but different
        numbers of rows.
    """
    if table.vocabulary is None or earlier.vocabulary is None:
        if (table.vocabulary, table.vocabulary_size) != (earlier.vocabulary, earlier.vocabulary_size):
            now, before = (
                "raw ids" if each.vocabulary is None else f"vocabulary {each.vocabulary!r}" for each in (table, earlier)
            )
            raise CheckpointError(
                f"table {table.name!r} has {table.vocabulary_size} rows of {now}; the checkpoint has "
                f"{earlier.vocabulary_size} rows of {before}. Raw ids continue only raw ids, and must keep their "
                "number of rows; rename the table and set `new_tables: initialize`."
            )
        rows = np.arange(table.vocabulary_size, dtype=np.int64)
        return RowSources(table=table, rows=rows, vocabulary=None, earlier=None, kept=np.zeros(0, np.bool_))
    new, old = vocabularies[table.vocabulary], earlier_vocabularies[earlier.vocabulary]
    rows = np.full(len(new) + table.oov_rows, -1, np.int64)
    tokens, unknown = rows[: len(new)], rows[len(new) :]
    _find(new.tokens, old.tokens, tokens)
    kept = tokens >= 0
    if new_rows == "oov" and earlier.oov_rows:
        tokens[~kept] = len(old) + _buckets(new.tokens.filter(pa.array(~kept)), earlier.oov_rows)
    if earlier.oov_rows:
        unknown[:] = len(old) + np.arange(table.oov_rows, dtype=np.int64) % earlier.oov_rows
    return RowSources(table=table, rows=rows, vocabulary=new, earlier=old, kept=kept)


def _find(tokens: pa.Array, others: pa.Array, rows: npt.NDArray[np.int64]) -> None:
    """Write into `rows` each token's index in `others`, if any; works in parts, so that hash tables stay small."""
    count = max(1 << 18, len(others) // 32)
    for start in range(0, len(others), count):
        known = others.slice(start, count)
        for first in range(0, len(tokens), count):
            indices = pc.fill_null(pc.index_in(tokens.slice(first, count), value_set=known), -1)
            places = indices.to_numpy(zero_copy_only=False)
            part = rows[first : first + len(places)]
            np.copyto(part, places + np.int64(start), where=places >= 0)
    pa.default_memory_pool().release_unused()


def _buckets(tokens: pa.Array, buckets: int) -> npt.NDArray[np.int64]:
    """Return the number of the out-of-vocabulary row to which `TokenTable` hashes each token."""
    strings = np.array(tokens.to_pylist(), object)
    numbers: npt.NDArray[np.int64] = tf.strings.to_hash_bucket_fast(tf.constant(strings, tf.string), buckets).numpy()
    return numbers


def sources_report(sources: RowSources) -> Json:
    """Report the kept, new and dropped tokens of a table, as a JSON object.

    Returns:
      "rows"; for a table with a vocabulary also "kept", "new" and "dropped" (numbers of tokens), "kept_traffic"
      (share of the token occurrences in the new data whose row is kept), "largest_new" and "largest_dropped" (tokens
      with counts), "largest_gains" and "largest_losses" (the tokens whose share of all occurrences changed most,
      from "before" to "now"; 0 for a token that has no row). For a private vocabulary, digests replace tokens.
    """
    report: Json = {"rows": sources.table.vocabulary_size}
    new, old = sources.vocabulary, sources.earlier
    if new is None or old is None:
        return report
    private = new.private or old.private
    tokens = sources.rows[: len(new)]
    dropped = np.ones(len(old), np.bool_)
    dropped[tokens[sources.kept]] = False
    return {
        **report,
        "kept": int(sources.kept.sum()),
        "new": int((~sources.kept).sum()),
        "dropped": int(dropped.sum()),
        "kept_traffic": int(new.counts[sources.kept].sum()) / max(1, new.total_count),
        "largest_new": _largest(new, ~sources.kept, private),
        "largest_dropped": _largest(old, dropped, private),
        **_movements(sources, old, new, dropped, private),
    }


def _largest(vocabulary: Vocabulary, chosen: npt.NDArray[np.bool_], private: bool) -> list[Json]:
    return [
        {"token": _shown(vocabulary, row, private), "count": int(vocabulary.counts[row])}
        for row, _ in _top(len(vocabulary), lambda part: np.where(chosen[part], vocabulary.counts[part], 0))
    ]


def _movements(
    sources: RowSources, old: Vocabulary, new: Vocabulary, dropped: npt.NDArray[np.bool_], private: bool
) -> dict[str, list[Json]]:
    """Return the tokens whose share of all occurrences changed most; new and dropped tokens are included."""

    def before(part: slice) -> npt.NDArray[np.float64]:
        rows = np.where(sources.kept[part], sources.rows[: len(new)][part], 0)
        shares: npt.NDArray[np.float64] = (
            old.counts[rows] / max(1, old.total_count) if len(old) else np.zeros(len(rows))
        )
        return np.where(sources.kept[part], shares, 0.0)

    def change(part: slice) -> npt.NDArray[np.float64]:
        return new.counts[part] / max(1, new.total_count) - before(part)

    def movement(row: int) -> Json:
        was = float(before(slice(row, row + 1))[0])
        return {
            "token": _shown(new, row, private),
            "before": was,
            "now": int(new.counts[row]) / max(1, new.total_count),
        }

    lost = [(by, movement(row)) for row, by in _top(len(new), lambda part: -change(part))]
    for row, by in _top(len(old), lambda part: np.where(dropped[part], old.counts[part] / max(1, old.total_count), 0)):
        lost.append((by, {"token": _shown(old, row, private), "before": by, "now": 0.0}))
    lost.sort(key=lambda pair: -pair[0])
    return {
        "largest_gains": [movement(row) for row, _ in _top(len(new), change)],
        "largest_losses": [entry for _, entry in lost[:_SHOWN]],
    }


def _top(rows: int, value: Callable[[slice], npt.NDArray[Any]]) -> list[tuple[int, float]]:
    """Return the rows with the largest values above 0, and the values; computes a part of the values at a time."""
    best: list[tuple[float, int]] = []
    for start in range(0, rows, _TOKENS_AT_ONCE):
        values = value(slice(start, min(start + _TOKENS_AT_ONCE, rows)))
        order = np.argsort(-values, kind="stable")[:_SHOWN]
        best += [(-float(values[row]), start + int(row)) for row in order if values[row] > 0]
        best = sorted(best)[:_SHOWN]
    return [(row, -negated) for negated, row in best]


def _shown(vocabulary: Vocabulary, row: int, private: bool) -> str:
    return shown_token(vocabulary.tokens[row].as_py(), private=private)


# Puts the rows of a table into another order, in bounded memory.

_SLICES_AT_ONCE = 16


def reordered(
    slices: Iterable[tuple[int, Rows]],
    sources: npt.NDArray[np.int64],
    dim: int,
    fill: Callable[[npt.NDArray[np.int64]], Rows],
    slice_bytes: int,
) -> Iterator[tuple[int, Rows]]:
    """Yield the rows in another order: ``new[i] = old[sources[i]]``, or a row of `fill` if the source is -1.

    Old slices are read once, in order. Their rows are appended to a file per new slice, and each file is then put in
    order in memory.

    Args:
      slices: (number of the first row, rows) of the old table, in order.
      sources: [new rows] the old row of each, or -1.
      dim: length of a row.
      fill: returns rows for the numbers of new rows that have no source.
      slice_bytes: bytes of a slice.
    """
    count = rows_per_slice((len(sources), dim), slice_bytes)
    targets_of = _Targets(sources)
    with scratch_folder("remap") as folder:
        for first, rows in slices:
            targets = targets_of.slice(first, len(rows))
            cuts = np.flatnonzero(np.diff(targets // count)) + 1
            for part in np.split(targets, cuts):
                if len(part):
                    _append(folder, int(part[0]) // count, part, rows[sources[part] - first])
        for bucket, start in enumerate(range(0, len(sources), count)):
            path = os.path.join(folder, str(bucket))
            yield start, _assembled(path, start, sources[start : start + count], dim, fill)


def aligned(
    slices: Iterable[tuple[int, Rows]], sources: npt.NDArray[np.int64], table: TableConfig, slice_bytes: int
) -> Iterable[tuple[int, Rows]]:
    """Return the slices of an earlier table in the order of a later one's rows; new rows are zeros.

    Args:
      slices: (number of the first row, rows) of the earlier table, in order.
      sources: [later rows] the earlier row of each, or -1.
      table: the earlier table.
      slice_bytes: bytes of a slice, of both tables.
    """
    if np.array_equal(sources, np.arange(table.vocabulary_size)):
        return slices
    zeros = lambda rows: np.zeros((len(rows), table.dim), np.float32)  # noqa: E731
    return reordered(slices, sources, table.dim, zeros, slice_bytes)


class _Targets:
    """Finds the new rows that come from a slice of old ones.

    It searches for a few slices at a time, because sorting all sources would take memory.
    """

    def __init__(self, sources: npt.NDArray[np.int64]) -> None:
        self._sources = sources
        self._end = 0
        self._some = np.zeros(0, np.int64)  # the new rows that come from the old ones before `_end`

    def slice(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return the new rows, ascending, whose sources are `first` to `first + count - 1`; call it in order."""
        if first + count > self._end:
            self._end = first + _SLICES_AT_ONCE * count
            self._some = np.flatnonzero((self._sources >= first) & (self._sources < self._end))
        chosen = self._sources[self._some]
        return self._some[(chosen >= first) & (chosen < first + count)]


def _append(folder: str, bucket: int, targets: npt.NDArray[np.int64], rows: Rows) -> None:
    for suffix, array in (("targets", targets), ("rows", rows)):
        with open(os.path.join(folder, f"{bucket}.{suffix}"), "ab") as file:
            file.write(np.ascontiguousarray(array).data)


def _assembled(
    path: str,
    start: int,
    sources: npt.NDArray[np.int64],
    dim: int,
    fill: Callable[[npt.NDArray[np.int64]], Rows],
) -> Rows:
    result = np.empty((len(sources), dim), np.float32)
    new = np.flatnonzero(sources < 0)
    if len(new):
        result[new] = fill(new + start)
    if len(new) < len(sources):
        came = os.path.exists(f"{path}.targets")
        targets = np.fromfile(f"{path}.targets", np.int64) if came else np.zeros(0, np.int64)
        if len(targets) != len(sources) - len(new):
            raise CheckpointError(
                f"{len(sources) - len(new)} earlier rows were expected, the checkpoint gave {len(targets)}: its tables "
                "are smaller than its manifest says; take another checkpoint."
            )
        result[targets - start] = np.fromfile(f"{path}.rows", np.float32).reshape(-1, dim)
        for suffix in ("targets", "rows"):
            os.remove(f"{path}.{suffix}")
    return result

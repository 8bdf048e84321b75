"""Finds, by token, the row of the previous run's table that each row of a new table continues from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from embedding_core.config import TableConfig
from embedding_core.display import shown_token
from embedding_core.errors import CheckpointError
from embedding_core.schema import Json
from embedding_core.vocabulary import Vocabulary
from embedding_core.warm_start import NewRows

_SHOWN = 10
_TOKENS_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSources:
    """The row of the previous run that each row of a table continues from.

    Attributes:
      table: the new table.
      rows: [rows of the new table] int64, the previous row, or -1 for a new row.
      vocabulary: vocabulary of the new table; None if its rows are raw ids.
      earlier: vocabulary of the previous rows; None for raw ids.
      kept: [tokens of the new vocabulary] bool, whether the token had a row.
    """

    table: TableConfig
    rows: npt.NDArray[np.int64]
    vocabulary: Vocabulary | None
    earlier: Vocabulary | None
    kept: npt.NDArray[np.bool_]

    def name_of(self, row: int) -> bytes:
        """Return what identifies a row of the new table: its token or, without one, bytes that no token can be."""
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
    ones. This is exact if k divides the new number of such rows: all tokens hashed to j were hashed to ``j % k``.

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
            raise CheckpointError(
                f"table {table.name!r} has {table.vocabulary_size} rows of vocabulary {table.vocabulary!r}, its "
                f"checkpoint {earlier.vocabulary_size} of {earlier.vocabulary!r}: rows of raw ids continue only the "
                "same rows; give the table another name, and start it with `new_tables`='initialize'."
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
    """Write the index of each token in `others`, if any, into `rows`; part by part, to bound memory for hash tables."""
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
      from "before" to "now"). For a private vocabulary, digests replace tokens.
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

"""Adds up the tokens that one worker counts, and sends them as messages to be merged by vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow_hotfix  # noqa: F401  # without it, pyarrow 10 runs code that an Arrow message holds (CVE-2023-47248)

from components.vocabulary_gen.counting import BatchCounts
from components.vocabulary_gen.counting_plan import CountedFeature, CountingPlan
from embedding_core.vocabulary import partition_of

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

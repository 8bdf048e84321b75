"""Gathers what one worker counts, and sends it as messages to be merged by vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.vocabulary_gen.counting import BatchCounts
from components.vocabulary_gen.counting_plan import CountedFeature, CountingPlan
from components.vocabulary_gen.token_counts import Part, TokenCounts, write_counts
from embedding_core.vocabulary import partition_of

TOKENS, FACTS = b"T", b"F"
"""First byte of a message: T for an Arrow message of counts, F for facts in JSON."""

SOURCES = ""
"""Key of the facts on the sources; all other keys are vocabularies, or parts of them ("<name>\n<part>")."""

_BAD_ROWS_NAMED = 1000


def add_histograms(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of two histograms of any lengths."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
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
    of = partition_of(tokens, parts)
    for part in np.unique(of):
        rows = np.flatnonzero(of == part)
        yield f"{vocabulary}\n{part:05d}", (tokens.take(pa.array(rows)), counts[rows])


def _facts(**facts: Any) -> bytes:
    return FACTS + json.dumps(facts).encode()

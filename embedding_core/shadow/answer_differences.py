"""Compares the answers of two versions to the same request, and adds the changes up over a stream of requests."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from embedding_core.proof.parity import gaps, is_text, json_number
from embedding_core.schema import Json
from embedding_core.shadow.request_rows import RequestRows, Visibility

Array: TypeAlias = npt.NDArray[Any]
_FIRST = (1, 10)


@dataclasses.dataclass(frozen=True)
class Change:
    """The change of one output between two answers.

    Attributes:
      difference: float64 `[rows]`: the largest absolute difference of a row's numbers; infinite if the shapes differ or
        one side alone is NaN. For ranked tokens, the share of tokens that one of the answers lacks.
      not_finite: bool `[rows]`, whether the new answer has NaN or infinity where the old one is finite.
      overlap: for ranked tokens, by k the share of tokens that the first k of both answers contain, `[rows]`.
      moved: for ranked tokens, the mean absolute change of rank of the tokens in both answers, `[rows]`; NaN without
        such tokens.
    """

    difference: Array
    not_finite: Array
    overlap: Mapping[int, Array] = dataclasses.field(default_factory=dict)
    moved: Array | None = None


def compare_answers(old: Mapping[str, Array], new: Mapping[str, Array], *, other_k: bool = False) -> dict[str, Change]:
    """Compare two answers of the same number of rows, for each output of the old one.

    Texts are rankings, the best first, padded with "". If an answer has one ranking and numbers of the same shape, the
    numbers are the scores of its tokens, and are compared by token: a token in one answer alone counts in the ranking.

    Args:
      old: arrays `[rows, ...]` by output name.
      new: arrays of the same names; there may be more.
      other_k: whether the new version ranks another number of candidates on purpose. Rankings are then compared as far
        as both have columns; otherwise each place that the new one lacks counts as a lost token.
    """
    rankings = [name for name, value in old.items() if is_text(value)]
    changes = {name: _ranking_change(old[name], new[name], other_k) for name in rankings}
    for name in old:
        if name in changes:
            continue
        if len(rankings) == 1 and _are_scores(old, name, rankings[0]) and _are_scores(new, name, rankings[0]):
            changes[name] = _score_change(old[rankings[0]], new[rankings[0]], old[name], new[name])
        else:
            changes[name] = _number_change(old[name], new[name])
    return changes


def _finite(values: Array) -> Array:
    return np.isfinite(np.asarray(values, np.float64))


def _are_scores(answer: Mapping[str, Array], name: str, ranking: str) -> bool:
    return answer[name].shape == answer[ranking].shape and answer[name].ndim == 2


def _by_row(values: Array) -> Array:
    return values.reshape(len(values), math.prod(values.shape[1:]))  # -1 would refuse an answer without rows


def _number_change(old: Array, new: Array) -> Change:
    rows = len(old)
    if is_text(new) or is_text(old):
        return Change(np.full(rows, np.inf), np.zeros(rows, bool))
    if old.shape != new.shape:
        lost = _by_row(_finite(old)).all(axis=1) & ~_by_row(_finite(new)).all(axis=1)
        return Change(np.full(rows, np.inf), lost)
    difference, _ = gaps(old, new)
    lost = _finite(old) & ~_finite(new)
    return Change(_by_row(difference).max(axis=1, initial=0.0), _by_row(lost).any(axis=1))


def _ranking_change(old: Array, new: Array, other_k: bool) -> Change:
    if not is_text(new):
        return _number_change(old, new)
    left, right = _by_row(old), _by_row(new)
    width = min(left.shape[1], right.shape[1]) if other_k else left.shape[1]
    pairs = [(_tokens(first)[:width], _tokens(second)[:width]) for first, second in zip(left, right, strict=True)]
    sizes = sorted({size for size in (*_FIRST, width) if 0 < size <= width})
    overlap = {size: np.array([_overlap(first[:size], second[:size]) for first, second in pairs]) for size in sizes}
    difference = 1.0 - overlap[width] if width else np.zeros(len(left))
    moved = np.array([_mean_move(first, second) for first, second in pairs], np.float64)
    return Change(difference, np.zeros(len(left), bool), overlap, moved)


def _score_change(old: Array, new: Array, old_scores: Array, new_scores: Array) -> Change:
    difference = np.zeros(len(old))
    lost = np.isnan(new_scores).any(axis=1) & ~np.isnan(old_scores).any(axis=1)  # padding has -inf, and no token
    for row in range(len(old)):
        before, after = _scores(old[row], old_scores[row]), _scores(new[row], new_scores[row])
        both = [token for token in before if token in after]
        change = _number_change(
            np.array([[before[token] for token in both]]), np.array([[after[token] for token in both]])
        )
        broken = [score for token, score in after.items() if token not in before and not np.isfinite(score)]
        difference[row] = change.difference[0]
        lost[row] |= change.not_finite[0] or bool(broken)
    return Change(difference, lost)


def _tokens(row: Array) -> list[bytes]:
    return [token for token in row if len(token)]


def _scores(tokens: Array, scores: Array) -> dict[bytes, float]:
    return {token: float(score) for token, score in zip(tokens, scores, strict=True) if len(token)}


def _overlap(old: list[bytes], new: list[bytes]) -> float:
    return len(set(old) & set(new)) / max(len(old), len(new)) if old or new else 1.0


def _mean_move(old: list[bytes], new: list[bytes]) -> float:
    ranks = {token: rank for rank, token in enumerate(new)}
    moves = [abs(ranks[token] - rank) for rank, token in enumerate(old) if token in ranks]
    return float(np.mean(moves)) if moves else float("nan")


# Counts values from a stream in buckets, for quantiles in bounded memory.

_GROWTH = math.log(1.02)
_ZERO = -(10**9)


class Distribution:
    """Distribution of numbers of at least 0, with quantiles that are at most 1% off; mean and maximum are exact.

    A bucket holds the values between two powers of 1.02 (Masson, Rim and Lee, "DDSketch", 2019), so that 10,000,000
    values need no more memory than some hundred.

    Attributes:
      count: how many values were added.
      total: their sum.
      largest: the largest of them; 0 if there is none.
    """

    def __init__(self) -> None:
        self.count, self.total, self.largest = 0, 0.0, 0.0
        self._buckets: Counter[int] = Counter()
        self._infinite = 0

    def add(self, values: npt.ArrayLike) -> None:
        """Add numbers of at least 0; infinity counts as the largest."""
        given = np.asarray(values, np.float64).ravel()
        if not given.size:
            return
        finite = given[np.isfinite(given)]
        places = np.full(finite.shape, _ZERO, np.int64)
        positive = finite > 0
        places[positive] = np.ceil(np.log(finite[positive]) / _GROWTH).astype(np.int64)
        for place, count in zip(*np.unique(places, return_counts=True), strict=True):
            self._buckets[int(place)] += int(count)
        self._infinite += given.size - finite.size
        self.count += given.size
        self.total += float(given.sum())
        self.largest = max(self.largest, float(given.max()))

    @property
    def mean(self) -> float:
        """The mean; 0 if there are no values."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return the smallest value that at least this share of the values do not exceed; 0 if there are none."""
        rank, seen = math.ceil(share * self.count), 0
        for place in sorted(self._buckets):
            seen += self._buckets[place]
            if seen >= rank:
                return 0.0 if place == _ZERO else min(math.exp((place - 0.5) * _GROWTH), self.largest)
        return self.largest


# Adds up the changes of answers over a stream of requests, by output and slice, and keeps the worst rows.

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_MOST_VALUES = 100
_OTHER = "(other)"
_LONGEST = 10
Mask = npt.NDArray[np.bool_]


class OutputTally:
    """Figures of one output over the rows added so far.

    Attributes:
      differences: how far the answers differ.
      not_finite: number of rows where the new answer has NaN or infinity, and the old one a number.
    """

    def __init__(self) -> None:
        self.differences = Distribution()
        self.not_finite = 0
        self._overlap: dict[int, Distribution] = {}
        self._moved = Distribution()

    def add(self, change: Change, rows: Mask | slice = slice(None)) -> None:
        """Add rows of a change."""
        self.differences.add(change.difference[rows])
        self.not_finite += int(change.not_finite[rows].sum())
        for size, shares in change.overlap.items():
            self._overlap.setdefault(size, Distribution()).add(shares[rows])
        if change.moved is not None:
            moved = change.moved[rows]
            self._moved.add(moved[~np.isnan(moved)])

    def overlap(self) -> float | None:
        """Return the mean overlap of whole answers; None if the output is not a ranking."""
        return self._overlap[max(self._overlap)].mean if self._overlap else None

    def to_json(self) -> Json:
        """Return the figures as JSON values; infinity as text."""
        found = self.differences
        quantiles = {name: found.quantile(share) for name, share in QUANTILES.items()}
        numbers = {"mean": found.mean, **quantiles, "max": found.largest}
        figures: Json = {
            "rows": found.count,
            **{name: json_number(value) for name, value in numbers.items()},
            "not_finite": self.not_finite,
        }
        if self._overlap:
            figures["overlap"] = {str(size): mean.mean for size, mean in sorted(self._overlap.items())}
            figures["mean_rank_change"] = self._moved.mean
        return figures


class Tally:
    """Figures of all outputs, by output and by slice, and the worst rows of each output.

    Attributes:
      outputs: figures over all rows, by `<signature>/<output>`.
    """

    def __init__(self, slices: tuple[str, ...], worst_rows: int, public: Visibility) -> None:
        self.outputs: dict[str, OutputTally] = {}
        self._columns, self._worst_rows, self._public = slices, worst_rows, public
        self._sliced: dict[tuple[str, str, str], OutputTally] = {}
        self._values: dict[str, set[str]] = {column: set() for column in slices}
        self._worst: dict[str, list[tuple[float, int, Json]]] = {}
        self._order = itertools.count()

    def add(
        self,
        signature: str,
        place: tuple[str, int],
        rows: RequestRows,
        changes: Mapping[str, Change],
        answers: tuple[Mapping[str, Any], Mapping[str, Any]],
    ) -> None:
        """Add the changes of one request.

        Args:
          signature: the signature that answered.
          place: record of the request, and the place of the first row in it.
          rows: its rows.
          changes: by output.
          answers: the old and the new answer.
        """
        slices = self._merged(rows.slices(self._columns, self._public), rows.count or 0)
        for output, change in changes.items():
            name = f"{signature}/{output}"
            self.outputs.setdefault(name, OutputTally()).add(change)
            for (column, value), mask in slices.items():
                self._sliced.setdefault((name, column, value), OutputTally()).add(change, mask)
            self._keep_worst(name, place, rows, change, answers[0][output], answers[1][output])

    def slices(self) -> list[Json]:
        """Return the figures by output and slice, the largest mean difference of an output first."""
        found = sorted(self._sliced.items(), key=lambda item: (item[0][0], -item[1].differences.mean, item[0]))
        return [
            {"output": output, "column": column, "value": value, **tally.to_json()}
            for (output, column, value), tally in found
        ]

    def worst(self) -> dict[str, list[Json]]:
        """Return the worst rows by output, the worst first."""
        return {name: [row for *_, row in sorted(heap, reverse=True)] for name, heap in sorted(self._worst.items())}

    def _merged(self, slices: Mapping[tuple[str, str], Mask], count: int) -> dict[tuple[str, str], Mask]:
        """Merge the values of a column beyond the first hundred into one slice, to bound the memory."""
        merged: dict[tuple[str, str], Mask] = {}
        for (column, value), mask in slices.items():
            known = self._values[column]
            if len(known) < _MOST_VALUES:
                known.add(value)
            key = (column, value if value in known else _OTHER)
            merged[key] = merged.get(key, np.zeros(count, bool)) | mask
        return merged

    def _keep_worst(
        self, name: str, place: tuple[str, int], rows: RequestRows, change: Change, old: Any, new: Any
    ) -> None:
        heap = self._worst.setdefault(name, [])
        for row in np.argsort(-change.difference, kind="stable")[: self._worst_rows]:
            difference = float(change.difference[row])
            if difference == 0 or (len(heap) == self._worst_rows and difference <= heap[0][0]):
                break
            facts = {
                "difference": json_number(difference),
                "place": f"{place[0]}, row {place[1] + int(row) + 1}",
                "request": rows.shown(int(row), self._public),
                "old": _shown(old[row], self._public),
                "new": _shown(new[row], self._public),
            }
            heapq.heappush(heap, (difference, -next(self._order), facts))
            if len(heap) > self._worst_rows:
                heapq.heappop(heap)


def _shown(values: Any, public: Visibility) -> str:
    """Show the first values of an answer to one row."""
    flat = np.ravel(values)
    if is_text(flat):
        shown = Visibility(frozenset([""] if public.answers else []))
        texts = [shown.shown("", text) for text in flat[:_LONGEST]]
    else:
        texts = [f"{float(number):.6g}" for number in flat[:_LONGEST]]
    return ", ".join(texts) + (", ..." if len(flat) > _LONGEST else "")

"""Adds up the changes of answers over a stream of requests, by output and slice, and keeps the worst rows."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from embedding_core.proof.parity import is_text, json_number
from embedding_core.schema import Json
from embedding_core.shadow.answer_differences import Change
from embedding_core.shadow.distributions import Distribution
from embedding_core.shadow.request_rows import Public, RequestRows

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
        ranking = {
            "overlap": {str(size): one.mean for size, one in sorted(self._overlap.items())},
            "mean_rank_change": self._moved.mean,
        }
        return {
            "rows": found.count,
            **{name: json_number(value) for name, value in numbers.items()},
            "not_finite": self.not_finite,
            **(ranking if self._overlap else {}),
        }


class Tally:
    """Figures of all outputs, by output and by slice, and the worst rows of each output.

    Attributes:
      outputs: figures over all rows, by `<signature>/<output>`.
    """

    def __init__(self, slices: tuple[str, ...], worst_rows: int, public: Public) -> None:
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


def _shown(values: Any, public: Public) -> str:
    """Show the first values of an answer to one row."""
    flat = np.ravel(values)
    if is_text(flat):
        shown = Public(frozenset([""] if public.answers else []))
        texts = [shown.shown("", one) for one in flat[:_LONGEST]]
    else:
        texts = [f"{float(one):.6g}" for one in flat[:_LONGEST]]
    return ", ".join(texts) + (", ..." if len(flat) > _LONGEST else "")

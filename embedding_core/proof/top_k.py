"""Compares the answers of `top_k` and `top_k_filtered` with the answers computed from training's vectors.

Two matrix products may differ in the last digits of a score, which may swap candidates that are equally good. So the
best scores are compared rank by rank, and each token by its own score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.proof.parity import Outputs, ParityReport, compare

Rows: TypeAlias = npt.NDArray[np.int64]
Scores: TypeAlias = npt.NDArray[np.float32]
Tokens: TypeAlias = npt.NDArray[Any]

_UNKNOWN_TOKEN = b"no such token 5b1f"
_SCORES_PER_STEP = 1 << 25
_ALLOWED = 40


class Filters(NamedTuple):
    """The filters of a request, as rows of candidates; -1 for tokens that are not candidates.

    Attributes:
      exclude: int64 `[B, E]`.
      among: int64 `[B, A]`.
      restricted: bool `[B]`, whether `among` restricts the row.
    """

    exclude: Rows
    among: Rows
    restricted: npt.NDArray[np.bool_]

    def tokens(self, names: Sequence[bytes]) -> dict[str, Tokens]:
        """Return the inputs `exclude` and `among`, given the token of each candidate."""
        known = np.asarray([*names, _UNKNOWN_TOKEN], object)
        return {
            "exclude": known[self.exclude],
            "among": np.where(self.restricted[:, np.newaxis], known[self.among], b""),
        }


class Answers(NamedTuple):
    """The answers computed from training's vectors.

    Attributes:
      queries, candidates: vectors `[B, n]` and `[N, n]`.
      scores: `[B, k]`, best first, -inf where no candidate remains.
      filters: the filters of the request; None for `top_k`.
    """

    queries: Scores
    candidates: Scores
    scores: Scores
    filters: Filters | None = None


def best_of_all(queries: Scores, candidates: Scores, k: int) -> tuple[Scores, Rows]:
    """Find the k best candidates of each query exactly: scores and rows `[B, min(k, N)]`."""
    step = max(1, _SCORES_PER_STEP // len(candidates))
    found = [
        tf.math.top_k(tf.matmul(queries[start : start + step], candidates, transpose_b=True), min(k, len(candidates)))
        for start in range(0, len(queries), step)
    ]
    scores, rows = (np.concatenate([part[place].numpy() for part in found]) for place in (0, 1))
    return scores, rows.astype(np.int64)


def filters_of(best: Rows, candidates: int) -> Filters:
    """Make filters that change the answers: exclude two of the best and an unknown token, and restrict every other row.

    Args:
      best: int64 `[B, k]`, the best candidates of each query.
      candidates: number of candidates.
    """
    unknown = np.full((len(best), 1), -1, np.int64)
    spaced = np.unique(np.linspace(0, candidates - 1, _ALLOWED).astype(np.int64))
    everywhere = np.broadcast_to(spaced, (len(best), len(spaced)))
    return Filters(
        exclude=np.concatenate([best[:, :1], unknown, best[:, 2:3]], 1),
        among=np.concatenate([best[:, :4], everywhere, unknown], 1),
        restricted=np.arange(len(best)) % 2 == 1,
    )


def answers_with(filters: Filters, queries: Scores, candidates: Scores, k: int) -> Answers:
    """Compute the exact answers under filters."""
    width = min(k, len(candidates))
    scores, rows = best_of_all(queries, candidates, k + filters.exclude.shape[1])
    expected = np.full((len(queries), width), -np.inf, np.float32)
    for number, query in enumerate(queries):
        gone = filters.exclude[number]
        if filters.restricted[number]:
            options = np.setdiff1d(filters.among[number], [-1, *gone])
            left = np.sort(candidates[options] @ query)[::-1][:width]
        else:
            left = scores[number][~np.isin(rows[number], gone)][:width]
        expected[number, : len(left)] = left
    return Answers(queries, candidates, expected, filters)


def compare_answers(
    wanted: Answers, served: Outputs, rows: Rows, *, exact: bool, tolerance: float, signature: str
) -> tuple[ParityReport, float]:
    """Compare the answers of a signature with the wanted ones.

    Args:
      wanted: the answers computed from training's vectors.
      served: `tokens` and `scores` `[B, k]` of the signature.
      rows: int64 `[B, k]`, the candidate of each served token; for an unknown token, any number out of range.
      exact: whether the signature searches exactly; rows that `among` restricts must be exact in any case.
      tolerance: largest allowed difference of scores, absolute below 1 and relative above.
      signature: prefix of the names in the report.

    Returns:
      The report, and the share of the best candidates that were found. The report's outputs are `tokens`, each served
      score against the token's score by training's vectors (a token that must not be there differs by infinity), and
      `scores`, compared rank by rank in rows that must be exact.
    """
    scores = np.asarray(served["scores"], np.float32)
    if scores.shape != wanted.scores.shape or rows.shape != wanted.scores.shape:
        expected, given = {"scores": wanted.scores}, {"scores": scores}
        return compare(expected, given, tolerance=tolerance, signature=signature), 0.0
    known = (rows >= 0) & (rows < len(wanted.candidates))
    trained = np.einsum("bn,bkn->bk", wanted.queries, wanted.candidates[np.where(known, rows, 0)])
    empty = np.isneginf(wanted.scores)
    wrong = np.where(empty, (served["tokens"] != b"") | ~np.isneginf(scores), ~known | _forbidden(rows, wanted.filters))
    shown = np.where(wrong, np.nan, np.where(empty, 0.0, scores))
    ranked = np.full(len(rows), exact) if wanted.filters is None else wanted.filters.restricted | exact
    parts = [
        compare({"tokens": np.where(empty, 0.0, trained)}, {"tokens": shown}, tolerance=tolerance, signature=signature)
    ]
    if ranked.any():
        best = np.where(empty, 0.0, wanted.scores)
        parts.append(
            compare({"scores": best[ranked]}, {"scores": shown[ranked]}, tolerance=tolerance, signature=signature)
        )
    return parts[0].merged(*parts[1:]), _recall(wanted.scores, np.where(wrong | empty, -np.inf, trained), tolerance)


def _forbidden(rows: Rows, filters: Filters | None) -> npt.NDArray[np.bool_]:
    """Mark the candidates that an answer must not contain: excluded, not among the allowed ones, or a duplicate."""
    found = np.zeros(rows.shape, bool)
    for number, row in enumerate(rows):
        first = np.unique(row, return_index=True)[1]
        found[number] = ~np.isin(np.arange(len(row)), first)
        if filters is not None:
            found[number] |= np.isin(row, filters.exclude[number])
            if filters.restricted[number]:
                found[number] |= ~np.isin(row, filters.among[number])
    return found


def _recall(wanted: Scores, trained: Scores, tolerance: float) -> float:
    """Compute the mean share of a row's best candidates that were found; equal scores count as equally good."""
    counts = np.isfinite(wanted).sum(axis=1)
    rows = np.flatnonzero(counts)
    if not len(rows):
        return 1.0
    least = wanted[rows, counts[rows] - 1]
    least = least - tolerance * np.maximum(1.0, np.abs(least))
    return float(np.mean((trained[rows] >= least[:, np.newaxis]).sum(axis=1) / counts[rows]))

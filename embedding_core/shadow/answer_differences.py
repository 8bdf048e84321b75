"""Compares the answers of two versions to the same request, row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from embedding_core.proof.parity import gaps, is_text

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
    return values.reshape(len(values), -1)


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
    pairs = [(_tokens(one)[:width], _tokens(other)[:width]) for one, other in zip(left, right, strict=True)]
    sizes = sorted({size for size in (*_FIRST, width) if 0 < size <= width})
    overlap = {size: np.array([_overlap(one[:size], other[:size]) for one, other in pairs]) for size in sizes}
    difference = 1.0 - overlap[width] if width else np.zeros(len(left))
    moved = np.array([_mean_move(one, other) for one, other in pairs], np.float64)
    return Change(difference, np.zeros(len(left), bool), overlap, moved)


def _score_change(old: Array, new: Array, old_scores: Array, new_scores: Array) -> Change:
    difference, lost = np.zeros(len(old)), np.zeros(len(old), bool)
    for row in range(len(old)):
        before, after = _scores(old[row], old_scores[row]), _scores(new[row], new_scores[row])
        both = [token for token in before if token in after]
        change = _number_change(
            np.array([[before[token] for token in both]]), np.array([[after[token] for token in both]])
        )
        broken = [score for token, score in after.items() if token not in before and not np.isfinite(score)]
        difference[row], lost[row] = change.difference[0], change.not_finite[0] or bool(broken)
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

"""Computes the AUC of each user's rows, and the mean AUC of the users by slice."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from components.evaluator.model_scores import ModelScores
from components.evaluator.slices import Positions
from components.evaluator.tfma_parts import Combiner, Metrics
from embedding_core.errors import ConfigError

_Singles = npt.NDArray[np.float32]


class GroupSums:
    """Keeps user, label, prediction and weight of each pair of a row and a slice: 28 bytes per pair."""

    def __init__(self) -> None:
        """Start without rows."""
        self._groups: list[npt.NDArray[np.int64]] = []  # `[2, pairs]`: slice and user
        self._rows: list[_Singles] = []  # `[3, pairs]`: prediction, label, weight; float32, as models give them

    def add(self, scores: ModelScores, rows: Positions, slices: Positions) -> None:
        """Add the pairs of a row and a slice."""
        if scores.user is None:
            raise ConfigError("GroupAUC needs users: set `evaluation.user`.")
        kept = scores.weight[rows] > 0
        rows, slices = rows[kept], slices[kept]
        self._groups.append(np.stack([slices, scores.user[rows]]))
        self._rows.append(
            np.stack([scores.prediction[rows], scores.label[rows], scores.weight[rows]]).astype(np.float32)
        )

    def of_slice(self, combiner: Combiner, number: int) -> Metrics:
        """Return the metric of a slice, by TFMA's key; NaN if no user has rows of both labels."""
        self._groups = [np.concatenate(self._groups, axis=1)]
        self._rows = [np.concatenate(self._rows, axis=1)]
        inside = self._groups[0][0] == number
        return {combiner.key: group_auc(self._groups[0][1, inside], *self._rows[0][:, inside])}


def group_auc(users: npt.NDArray[np.int64], prediction: _Singles, label: _Singles, weight: _Singles) -> float:
    """Compute the mean of the users' AUCs, each weighted by the weights of the user's rows; inputs are `[rows]`.

    A pair of rows with equal predictions counts half, as in the trapezoidal rule. A user whose rows all have the same
    label has no AUC and is left out.

    Returns:
      The mean; NaN if no user has an AUC.
    """
    order = np.lexsort((prediction, users))
    users, prediction = users[order], prediction[order]
    positive = (weight * label)[order].astype(np.float64)
    negative = (weight * (1 - label))[order].astype(np.float64)
    new_user = np.diff(users, prepend=-1) != 0
    ties = np.cumsum(new_user | (np.diff(prediction, prepend=np.nan) != 0)) - 1
    owner = np.cumsum(new_user) - 1
    first = np.flatnonzero(new_user)
    before = np.cumsum(negative) - negative
    tied = np.bincount(ties, negative)
    start = np.flatnonzero(np.diff(ties, prepend=-1))
    lower = before[start][ties] - before[first][owner]  # weight of the user's negatives with a lower prediction
    won = np.bincount(owner, positive * (lower + tied[ties] / 2))
    pairs = np.bincount(owner, positive) * np.bincount(owner, negative)
    both, total = pairs > 0, np.bincount(owner, positive + negative)
    return float(np.average(won[both] / pairs[both], weights=total[both])) if both.any() else math.nan

"""Computes loss and AUC of a split."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from embedding_core.training.step import Trainable
from embedding_core.training.training_inputs import Batch

Floats = npt.NDArray[np.float64]


class Evaluation(NamedTuple):
    """Figures of one evaluation; NaN if undefined (the AUC of a single class)."""

    loss: float
    auc: float


def auc(label: Floats, score: Floats, weight: Floats) -> float:
    """Compute the exact area under the ROC curve.

    It is the weighted share of (positive, negative) pairs that are ordered correctly; a tie counts half.

    Args:
      label: 0 or 1, [n].
      score: higher is more positive, [n].
      weight: weight of each row, [n].

    Returns:
      The area, or NaN if one class has no weight.
    """
    order = np.argsort(score, kind="stable")
    _, tie = np.unique(score[order], return_inverse=True)
    positive = np.bincount(tie, (weight * label)[order])
    negative = np.bincount(tie, (weight * (1 - label))[order])
    pairs = positive.sum() * negative.sum()
    below = np.cumsum(negative) - negative
    return float(np.sum(positive * (below + negative / 2)) / pairs) if pairs else math.nan


def log_loss(label: Floats, logit: Floats, weight: Floats) -> float:
    """Compute the weighted mean of the binary cross-entropy, or NaN if no row has weight."""
    losses = np.maximum(logit, 0) - logit * label + np.log1p(np.exp(-np.abs(logit)))
    total = weight.sum()
    return float(np.sum(losses * weight) / total) if total else math.nan


def evaluate(trainable: Trainable, batches: Iterable[Batch]) -> Evaluation:
    """Compute loss (without class weights and penalties) and AUC over all batches, with the sample weights."""
    scores = [trainable.predict(batch) for batch in batches]
    logit, label, weight = (np.concatenate(parts).ravel().astype(np.float64) for parts in zip(*scores, strict=True))
    return Evaluation(log_loss(label, logit, weight), auc(label, logit, weight))

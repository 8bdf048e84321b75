"""Computes the losses and AUCs of a split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.model_inputs import prediction_of, row_losses
from embedding_core.tasks import Task, metric_name
from embedding_core.training.step import Trainable
from embedding_core.training.training_inputs import Batch

Floats = npt.NDArray[np.float64]
RowLosses: TypeAlias = Callable[[Task, tf.Tensor, tf.Tensor], tf.Tensor]


class TaskFigures(NamedTuple):
    """Figures of one task; NaN if undefined (the AUC of a single class, or of a task that is not binary)."""

    loss: float
    auc: float


class Evaluation(NamedTuple):
    """Figures of one evaluation.

    Attributes:
      loss: sum of the tasks' losses, each times the task's weight.
      auc: mean of the AUCs of the binary tasks, except one that a softmax trains; NaN if none is left or an AUC is NaN.
      tasks: figures by the name of the task.
      metrics: what the function `eval_metrics` of the model's module returned.
    """

    loss: float
    auc: float
    tasks: Mapping[str, TaskFigures]
    metrics: Mapping[str, float] = MappingProxyType({})


def area_under_roc(positive: Floats, negative: Floats) -> float:
    """Compute the chance that a positive row has a higher score than a negative one; equal scores count half.

    Args:
      positive: weight of the rows with label 1, by increasing score, `[buckets]`.
      negative: weight of the rows with label 0.

    Returns:
      The area; NaN unless both labels occur.
    """
    pairs = positive.sum() * negative.sum()
    below = np.cumsum(negative) - negative
    return float(np.sum(positive * (below + negative / 2)) / pairs) if pairs else math.nan


def auc(label: Floats, score: Floats, weight: Floats) -> float:
    """Compute the exact area under the ROC curve.

    The area is the weighted share of (positive, negative) pairs that are ordered correctly; a tie counts half.

    Args:
      label: 0 or 1, [n].
      score: higher is more positive, [n].
      weight: weight of each row, [n].

    Returns:
      The area, or NaN if one class has no weight, or a row with weight has the score NaN.
    """
    if np.isnan(score[weight > 0]).any():
        return math.nan
    order = np.argsort(score, kind="stable")
    _, tie = np.unique(score[order], return_inverse=True)
    positive = np.bincount(tie, (weight * label)[order]).astype(np.float64)
    negative = np.bincount(tie, (weight * (1 - label))[order]).astype(np.float64)
    return area_under_roc(positive, negative)


def evaluate(trainable: Trainable, batches: Iterable[Batch]) -> Evaluation:
    """Compute losses (without class weights and penalties) and AUCs over all batches, with the sample weights."""
    scores = trainable.scores(batches)
    output, label, weight, softmax = (np.concatenate(parts).astype(np.float64) for parts in zip(*scores, strict=True))
    outputs = np.split(output, np.cumsum([task.width for task in trainable.tasks])[:-1], axis=1)
    figures = {
        task.name: task_figures(task, label[:, at], outputs[at], weight[:, 0], trainable.functions.row_losses)
        if at != trainable.by_softmax
        else _retrieval_figures(label[:, at], softmax[:, 0], weight[:, 0])
        for at, task in enumerate(trainable.tasks)
    }
    losses = [task.weight * figures[task.name].loss for task in trainable.tasks]
    judged = [task for at, task in enumerate(trainable.tasks) if task.is_binary and at != trainable.by_softmax]
    areas = [figures[task.name].auc for task in judged]
    metrics = _metrics(trainable, label, outputs, weight[:, 0])
    return Evaluation(float(np.sum(losses)), float(np.mean(areas)) if areas else math.nan, figures, metrics)


def _retrieval_figures(label: Floats, losses: Floats, weight: Floats) -> TaskFigures:
    """Compute the mean loss of a softmax over candidates, from arrays `[n]`; only rows with label 1 have a loss."""
    is_query = (label > 0.5) & (weight > 0)
    loss = float(np.average(losses[is_query], weights=weight[is_query])) if is_query.any() else math.nan
    return TaskFigures(loss, math.nan)


def _metrics(trainable: Trainable, label: Floats, outputs: Sequence[Floats], weight: Floats) -> dict[str, float]:
    """Compute the user's figures, by name; if there are several tasks, each name starts with the task's name."""
    found = {}
    for at, task in enumerate(trainable.tasks):
        prediction = prediction_of(task, tf.constant(outputs[at])).numpy()
        figures = trainable.functions.metrics(task, label[:, at], prediction, weight)
        found.update({metric_name(trainable.tasks, task, name): value for name, value in figures.items()})
    return found


def task_figures(
    task: Task, label: Floats, output: Floats, weight: Floats, losses_of: RowLosses = row_losses
) -> TaskFigures:
    """Compute the figures of one task, from labels and weights `[n]`, and outputs `[n]` or `[n, width]`.

    Rows without the label (NaN) do not count.
    """
    known = ~np.isnan(label)
    label, output, weight = label[known], output[known].reshape(known.sum(), -1), weight[known]
    losses = losses_of(task, tf.constant(label[:, np.newaxis]), tf.constant(output)).numpy()[:, 0]
    total = weight.sum()
    mean = float(np.sum(losses * weight) / total) if total else math.nan
    return TaskFigures(mean, auc(label, output[:, 0], weight) if task.is_binary else math.nan)

"""Computes the losses and AUCs of a split."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.task_outputs import row_losses
from embedding_core.tasks import Task
from embedding_core.training.step import Trainable
from embedding_core.training.training_inputs import Batch

Floats = npt.NDArray[np.float64]


class TaskFigures(NamedTuple):
    """Figures of one task; NaN if undefined (the AUC of a single class, or of a task that is not binary)."""

    loss: float
    auc: float


class Evaluation(NamedTuple):
    """Figures of one evaluation.

    Attributes:
      loss: sum of the tasks' losses, each times the task's weight.
      auc: mean of the AUCs of the binary tasks; NaN if there is none, or one of them is NaN.
      tasks: figures by the name of the task.
    """

    loss: float
    auc: float
    tasks: Mapping[str, TaskFigures]


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


def evaluate(trainable: Trainable, batches: Iterable[Batch]) -> Evaluation:
    """Compute losses (without class weights and penalties) and AUCs over all batches, with the sample weights."""
    scores = [trainable.predict(batch) for batch in batches]
    output, label, weight, softmax = (np.concatenate(parts).astype(np.float64) for parts in zip(*scores, strict=True))
    figures = {
        task.name: task_figures(task, label[:, at], output[:, at], weight[:, 0])
        if at != trainable.by_softmax
        else _retrieval_figures(label[:, at], softmax[:, 0], weight[:, 0])
        for at, task in enumerate(trainable.tasks)
    }
    losses = [task.weight * figures[task.name].loss for task in trainable.tasks]
    judged = [task for at, task in enumerate(trainable.tasks) if task.is_binary and at != trainable.by_softmax]
    areas = [figures[task.name].auc for task in judged]
    return Evaluation(float(np.sum(losses)), float(np.mean(areas)) if areas else math.nan, figures)


def _retrieval_figures(label: Floats, losses: Floats, weight: Floats) -> TaskFigures:
    """Compute the mean loss of a softmax over candidates, from `[n]` each; only rows of label 1 have one."""
    is_query = (label > 0.5) & (weight > 0)
    loss = float(np.average(losses[is_query], weights=weight[is_query])) if is_query.any() else math.nan
    return TaskFigures(loss, math.nan)


def task_figures(task: Task, label: Floats, output: Floats, weight: Floats) -> TaskFigures:
    """Compute the figures of one task, from `[n]` each; rows without the label (NaN) do not count."""
    known = ~np.isnan(label)
    label, output, weight = label[known], output[known], weight[known]
    losses = row_losses(task, tf.constant(label), tf.constant(output)).numpy()
    total = weight.sum()
    mean = float(np.sum(losses * weight) / total) if total else math.nan
    return TaskFigures(mean, auc(label, output, weight) if task.is_binary else math.nan)

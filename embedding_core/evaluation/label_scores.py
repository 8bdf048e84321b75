"""Scores a restored run on each label beside the mean of the label, as a model without features would predict it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from embedding_core.evaluation.towers import only_features
from embedding_core.model_inputs import call_model, sequence_lengths
from embedding_core.quality_rules import HIGHER_IS_BETTER, main_metric
from embedding_core.task_outputs import prediction_of
from embedding_core.tasks import Task, metric_name, retrieval_index
from embedding_core.training.eval_metrics import auc
from embedding_core.training.finished_run import RestoredRun
from embedding_core.training.row_stream import batches_once
from embedding_core.training.training_inputs import Inputs, RowParser
from embedding_core.training.user_functions import UserFunctions

_BATCH = 4096
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelScore:
    """The main metric of one label on the eval split.

    Attributes:
      label: name of the label.
      metric: the metric, as `evaluation.thresholds` names it: "AUC", or "click/AUC" if there are several labels.
      model: its value for the model.
      constant: its value for the mean of the label in the train split; of a multiclass label, for the most frequent
        class.
    """

    label: str
    metric: str
    model: float
    constant: float

    @property
    def is_reached(self) -> bool:
        """Whether the model is at least as good as the constant; not if its value is NaN."""
        higher = self.metric.rpartition("/")[2] in HIGHER_IS_BETTER
        return self.model >= self.constant if higher else self.model <= self.constant


def score_labels(
    run: RestoredRun, inputs: Inputs, *, train_files: Sequence[str], eval_files: Sequence[str]
) -> list[LabelScore]:
    """Score each label that a prediction is trained for.

    Labels without a score: one that a softmax over candidates trains, a number whose loss the model's module computes
    (its main metric is unknown), and one that has no row, or one class alone, in a split.

    Args:
      run: the trained model.
      inputs: sources of the inputs, as in training.
      train_files: TFRecord files of the train split; they are read only if a label is not binary.
      eval_files: TFRecord files of the eval split.
    """
    tasks = inputs.tasks
    judged = [at for at, task in enumerate(tasks) if _is_judged(run, at, task)]
    if not judged:
        return []
    label, weight, predictions = _predicted(run, inputs, eval_files)
    totals = (
        _totals(inputs, train_files) if any(not tasks[at].is_binary for at in judged) else [np.ones(2)] * len(tasks)
    )
    scores = []
    for at in judged:
        known = ~np.isnan(label[:, at]) & (weight > 0)
        has_rows = known.any() and totals[at].any()
        if has_rows and not (tasks[at].is_binary and len(np.unique(label[known, at])) < 2):
            values = _values(tasks[at], label[known, at], predictions[at][known], weight[known], totals[at])
            metric = metric_name(tasks, tasks[at], main_metric(tasks[at]))
            scores.append(LabelScore(label=tasks[at].name, metric=metric, model=values[0], constant=values[1]))
    return scores


def _is_judged(run: RestoredRun, at: int, task: Task) -> bool:
    description = run.description
    if description.training.softmax is not None and at == retrieval_index(description.tasks):
        return False
    return task.is_binary or task.is_multiclass or not UserFunctions(description.model).has_row_loss


def _predicted(run: RestoredRun, inputs: Inputs, files: Sequence[str]) -> tuple[Floats, Floats, list[Floats]]:
    """Return labels `[n, tasks]`, weights `[n]`, and the predictions of each task, `[n, width]`."""
    parse, config = RowParser(inputs).traced(), run.description.config
    labels, weights, outputs = [], [], []
    for _, serialized in batches_once(list(files), _BATCH):
        batch = parse(serialized)
        numbers = {**batch["dense"], **sequence_lengths(config, batch["ids"])}
        output = call_model(run.model, run.engine.lookup(batch["ids"]), numbers, inputs.tasks)
        labels.append(batch["label"].numpy())
        weights.append(batch["weight"].numpy()[:, 0])
        outputs.append([prediction_of(task, output[task.name]).numpy() for task in inputs.tasks])
    predictions = [np.concatenate(parts).astype(np.float64) for parts in zip(*outputs, strict=True)]
    return np.concatenate(labels).astype(np.float64), np.concatenate(weights).astype(np.float64), predictions


def _totals(inputs: Inputs, files: Sequence[str]) -> list[Floats]:
    """Sum the weights of the train split by label: of each class, or of all rows and of the label times the weight."""
    first = [feature.name for feature in inputs.config.features[:1]]
    parse = RowParser(only_features(inputs, first, dense=False)).traced()
    totals = [np.zeros(task.width if task.is_multiclass else 2) for task in inputs.tasks]
    for _, serialized in batches_once(list(files), _BATCH):
        batch = parse(serialized)
        label, weight = (batch[name].numpy().astype(np.float64) for name in ("label", "weight"))
        for at, total in enumerate(_of_batch(inputs.tasks, label, weight[:, 0])):
            totals[at] += total
    return totals


def _of_batch(tasks: Sequence[Task], label: Floats, weight: Floats) -> Iterator[Floats]:
    for at, task in enumerate(tasks):
        known = ~np.isnan(label[:, at])
        values, weights = label[known, at], weight[known]
        if task.is_multiclass:
            yield np.bincount(values.astype(np.int64), weights, minlength=task.width).astype(np.float64)
        else:
            yield np.array([weights.sum(), np.sum(values * weights)])


def _values(task: Task, label: Floats, predicted: Floats, weight: Floats, totals: Floats) -> tuple[float, float]:
    """Return the main metric of the predictions, and of the constant."""
    if task.is_binary:
        return auc(label, predicted[:, 0], weight), 0.5
    if task.is_multiclass:
        hits = (predicted.argmax(axis=1) == label, totals.argmax() == label)
        return float(np.average(hits[0], weights=weight)), float(np.average(hits[1], weights=weight))
    errors = (predicted[:, 0] - label, totals[1] / totals[0] - label)
    if main_metric(task) == "MeanAbsoluteError":
        absolute = [float(np.average(np.abs(error), weights=weight)) for error in errors]
        return absolute[0], absolute[1]
    squared = [float(np.sqrt(np.average(error**2, weights=weight))) for error in errors]
    return squared[0], squared[1]

"""Counts the rows of a split by class, and scores a restored run on each label beside the mean of the label."""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.evaluation.towers import only_features
from embedding_core.model_inputs import call_model, prediction_of, sequence_lengths
from embedding_core.quality_rules import HIGHER_IS_BETTER, main_metric
from embedding_core.tasks import Task, metric_name, retrieval_index
from embedding_core.training.eval_metrics import auc
from embedding_core.training.finished_run import RestoredRun
from embedding_core.training.row_stream import batches_once
from embedding_core.training.training_inputs import Batch, Inputs, RowParser, UserFunctions

_BATCH = 4096
Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32]


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictions:
    """Rows of a split and what a model predicts for them, in the order of the files.

    Attributes:
      label: float32 [rows, labels]; NaN if a row lacks the label.
      weight: float32 [rows].
      prediction: float32 [rows, sum of the labels' widths]: probabilities or numbers, those of the first label first.
    """

    label: Values
    weight: Values
    prediction: Values

    def of(self, tasks: Sequence[Task], at: int, rows: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
        """Return label and weight, `[n]`, and the predictions, `[n, width]`, of the label at position `at`."""
        start = sum(task.width for task in tasks[:at])
        predicted = self.prediction[rows, start : start + tasks[at].width]
        label, weight = self.label[rows, at], self.weight[rows]
        return label.astype(np.float64), weight.astype(np.float64), predicted.astype(np.float64)

    def to_bytes(self) -> bytes:
        """Return the arrays as a file of NumPy, .npz; `from_bytes` reads it."""
        file = io.BytesIO()
        np.savez(file, **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Predictions:
        """Read what `to_bytes` wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(**arrays)


def predict(
    run: RestoredRun, inputs: Inputs, files: Sequence[str], seen: Callable[[Batch], None] = lambda _: None
) -> Predictions:
    """Predict the rows of TFRecord files, and call `seen` with each batch."""
    labels, weights, predictions = [], [], []
    for batch, predicted in scored_batches(run, inputs, files):
        seen(batch)
        labels.append(batch["label"].numpy())
        weights.append(batch["weight"].numpy()[:, 0])
        predictions.append(np.concatenate([predicted[task.name] for task in inputs.tasks], axis=1))
    return Predictions(
        label=np.concatenate(labels), weight=np.concatenate(weights), prediction=np.concatenate(predictions)
    )


def score_labels(
    run: RestoredRun, inputs: Inputs, predictions: Predictions, *, train_files: Sequence[str]
) -> list[LabelScore]:
    """Score each label that a prediction is trained for.

    Labels without a score: one that a softmax over candidates trains, a number whose loss the model's module computes
    (its main metric is unknown), and one that has no row, or one class alone, in a split.

    Args:
      run: the trained model.
      inputs: sources of the inputs, as in training.
      predictions: what the model predicts for the eval split.
      train_files: TFRecord files of the train split; they are read only if a label is not binary.
    """
    tasks = inputs.tasks
    judged = [at for at, task in enumerate(tasks) if _is_judged(run, at, task)]
    if not judged:
        return []
    totals = (
        _totals(inputs, train_files) if any(not tasks[at].is_binary for at in judged) else [np.ones(2)] * len(tasks)
    )
    scores = []
    for at in judged:
        label, weight, predicted = predictions.of(
            tasks, at, ~np.isnan(predictions.label[:, at]) & (predictions.weight > 0)
        )
        if len(label) and totals[at].any() and not (tasks[at].is_binary and len(np.unique(label)) < 2):
            values = _values(tasks[at], label, predicted, weight, totals[at])
            metric = metric_name(tasks, tasks[at], main_metric(tasks[at]))
            scores.append(LabelScore(label=tasks[at].name, metric=metric, model=values[0], constant=values[1]))
    return scores


def _is_judged(run: RestoredRun, at: int, task: Task) -> bool:
    description = run.description
    if description.training.softmax is not None and at == retrieval_index(description.tasks):
        return False
    return task.is_binary or task.is_multiclass or not UserFunctions(description.model).has_row_loss


def scored_batches(
    run: RestoredRun, inputs: Inputs, files: Sequence[str]
) -> Iterator[tuple[Batch, dict[str, npt.NDArray[np.float32]]]]:
    """Yield the rows of files in batches, with the predictions of each task, float32 [B, width], by its name."""
    config = run.description.config
    for _, serialized in batches_once(list(files), _BATCH):
        batch = inputs.parse(serialized)
        numbers = {**batch["dense"], **sequence_lengths(config, batch["ids"])}
        output = call_model(run.model, run.engine.lookup(batch["ids"]), numbers, inputs.tasks)
        yield batch, {task.name: prediction_of(task, output[task.name]).numpy() for task in inputs.tasks}


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


# Counts the rows of a split by class, and the tokens of each feature that its vocabulary does not know.


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureCounts:
    """Counts of one categorical feature in a split.

    Attributes:
      empty_rows: number of rows without any token.
      tokens: number of token occurrences.
      unknown_tokens: number of occurrences of tokens that the vocabulary does not have; 0 for raw ids.
      unknown_rows: number of rows with at least one unknown token.
    """

    empty_rows: int
    tokens: int
    unknown_tokens: int
    unknown_rows: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """Counts of one label in a split.

    Attributes:
      rows: number of rows that have the label.
      positives, negatives: numbers of rows with label 1 and label 0; None if the label is not binary.
    """

    rows: int
    positives: int | None
    negatives: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Counts of a split.

    Attributes:
      rows: number of rows.
      labels: counts by the name of the task; if the data has no label, each row counts as label 1.
      features: counts by categorical feature.
    """

    rows: int
    labels: Mapping[str, LabelCounts]
    features: Mapping[str, FeatureCounts]


def count_and_predict(
    run: RestoredRun, inputs: Inputs, files: Sequence[str], seen: Callable[[Batch], None] = lambda _: None
) -> tuple[SplitCounts, Predictions]:
    """Do `count_split` and `predict`, in one pass unless a table drops unknown tokens; call `seen` with each batch."""
    if _with_unknown_rows(inputs.config) != inputs.config:
        return count_split(inputs, files), predict(run, inputs, files, seen)
    counter = _Counter(inputs)

    def count(batch: Batch) -> None:
        counter.add(batch)
        seen(batch)

    predictions = predict(run, inputs, files, count)
    return counter.counts(), predictions


def count_split(inputs: Inputs, files: Sequence[str]) -> SplitCounts:
    """Count the rows of a split in one pass, parsed as in training.

    Args:
      inputs: sources of the inputs.
      files: TFRecord files of the split.
    """
    counting = dataclasses.replace(inputs, config=_with_unknown_rows(inputs.config))
    counter = _Counter(counting)
    for _, serialized in batches_once(list(files), _BATCH):
        counter.add(counting.parse(serialized))
    return counter.counts()


class _Counter:
    """Counts the rows of batches in which every unknown token has an id."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._rows = 0
        self._features = Counter[tuple[str, str]]()
        self._labelled, self._positives = (np.zeros(len(inputs.tasks), np.int64) for _ in range(2))

    def add(self, batch: Batch) -> None:
        label, config = batch["label"].numpy(), self._inputs.config
        self._rows += int(batch["rows"])
        self._labelled += (~np.isnan(label)).sum(axis=0)
        self._positives += (label == 1).sum(axis=0)
        for feature in config.features:
            counts = _counts(config.table_of(feature.name), batch["ids"][feature.name])
            self._features.update({(feature.name, key): count for key, count in counts.items()})

    def counts(self) -> SplitCounts:
        names = [field.name for field in dataclasses.fields(FeatureCounts)]
        return SplitCounts(
            rows=self._rows,
            labels={
                task.name: _label_counts(task, int(has), int(positive))
                for task, has, positive in zip(self._inputs.tasks, self._labelled, self._positives, strict=True)
            },
            features={
                feature.name: FeatureCounts(**{name: self._features[feature.name, name] for name in names})
                for feature in self._inputs.config.features
            },
        )


def _label_counts(task: Task, rows: int, positives: int) -> LabelCounts:
    if not task.is_binary:
        return LabelCounts(rows=rows, positives=None, negatives=None)
    return LabelCounts(rows=rows, positives=positives, negatives=rows - positives)


def _with_unknown_rows(config: EmbeddingConfig) -> EmbeddingConfig:
    """Give every table an unknown row, so that every unknown token is counted and none is dropped."""
    tables = [
        table
        if table.vocabulary is None or table.oov_rows
        else table.replace(vocabulary_size=table.vocabulary_size + 1, oov_rows=1)
        for table in config.tables
    ]
    return config.replace(tables=tuple(tables))


def _counts(table: TableConfig, ids: tf.RaggedTensor) -> dict[str, int]:
    values, splits = ids.values.numpy(), ids.row_splits.numpy()
    unknown = (values >= table.vocabulary_size - table.oov_rows) & (table.vocabulary is not None)
    before = np.concatenate([[0], np.cumsum(unknown)])
    return {
        "empty_rows": int((np.diff(splits) == 0).sum()),
        "tokens": len(values),
        "unknown_tokens": int(before[-1]),
        "unknown_rows": int((before[splits[1:]] > before[splits[:-1]]).sum()),
    }

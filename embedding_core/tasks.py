"""Declares the tasks of a model: what each of its labels is, and the loss that trains it. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from embedding_core.schema import Listed, Mistakes, Name, PositiveNumber, Section, Text

LOGIT, PROBABILITY, PREDICTION = "logit", "probability", "prediction"
CLASSES, PROBABILITIES = "classes", "probabilities"
"""Outputs of the signatures."""

Kind: TypeAlias = Literal["binary", "regression", "count", "multiclass", "positive"]


class Objective(Section):
    """What a label is, and the loss that trains it.

    Attributes:
      kind: kind of the label: "binary" (0 or 1, trained by cross-entropy), "regression" (a number), "count" (a number
        of at least 0, trained by the Poisson loss; the model computes the logarithm of the expected count),
        "multiclass" (one of several values as written in the data, trained by softmax cross-entropy), or "positive" (no
        label: each row is an event with the label 1). With `training.softmax`, a label of kind "positive" may be
        combined with others.
      loss: loss of a regression: "squared", "absolute", or "huber".
      huber_delta: error above which the loss "huber" grows linearly.
      weight: factor of the label's loss, if there are several labels.
    """

    kind: Kind = "binary"
    loss: Literal["squared", "absolute", "huber"] = "squared"
    huber_delta: PositiveNumber = 1.0
    weight: PositiveNumber = 1.0

    @property
    def is_binary(self) -> bool:
        """Whether the label is 0 or 1, so that the model computes a logit."""
        return self.kind in ("binary", "positive")

    @property
    def is_multiclass(self) -> bool:
        """Whether the label is one of several classes, so that the model computes a logit for each."""
        return self.kind == "multiclass"

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if self.loss != "squared" and self.kind != "regression":
            yield "loss", f"is {self.loss!r}, but `kind` is {self.kind!r}: only a regression has a choice of losses."
        elif self.huber_delta != 1 and self.loss != "huber":
            yield "huber_delta", f"is {self.huber_delta!r}, but `loss` is {self.loss!r}: leave it out, or write huber."


class Task(Objective):
    """One label of a training: the column of Transform's output that holds it, and what it is.

    Attributes:
      name: name of the task; if there are several tasks, it names the outputs of model and signatures, and the reports'
        figures.
      key: name of the label among the transformed columns; if it is None, the label of each row is 1.
      classes: values of a multiclass label in the train split, in the order of the model's outputs. The trainer
        reads them from the transform graph; a configuration does not have them.
      source: what the label is made from, in words such as "column 'tips' above 2.0"; None if it is not known. A warm
        start restores the dense part only if it was trained for the same source.
    """

    name: Name = "label"
    key: Text | None = "label"
    classes: Listed[Text] = ()
    source: Text | None = None

    @property
    def width(self) -> int:
        """Number of columns of the model's output: one per class of a multiclass label, else 1."""
        return len(self.classes) if self.is_multiclass else 1

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        yield from super().mistakes()
        if self.key is None and self.kind != "positive":
            yield "key", f"is None, but `kind` is {self.kind!r}: only the label of rows that are all positive is known."
        if self.classes and not self.is_multiclass:
            yield "classes", f"are given, but `kind` is {self.kind!r}: only a multiclass label has classes."


POSITIVE = Task(kind="positive", key=None)
"""The task of data that holds positives only."""


def retrieval_index(tasks: Sequence[Task]) -> int:
    """Return the position of the task that a softmax over candidates trains: that of kind "positive", or the first."""
    return next((at for at, task in enumerate(tasks) if task.kind == "positive"), 0)


def prediction_name(tasks: Sequence[Task], task: Task) -> str:
    """Return the name under which the signatures return the prediction of a task."""
    if task.is_multiclass:
        return served_name(tasks, task, PROBABILITIES)
    return served_name(tasks, task, PROBABILITY if task.is_binary else PREDICTION)


def served_name(tasks: Sequence[Task], task: Task, output: str) -> str:
    """Return the name of an output of a task in the signatures."""
    return output if len(tasks) == 1 else f"{task.name}_{output}"


def metric_name(tasks: Sequence[Task], task: Task, metric: str) -> str:
    """Return the name of a task's metric: "AUC", or "click/AUC" if there are several tasks."""
    return metric if len(tasks) == 1 else f"{task.name}/{metric}"

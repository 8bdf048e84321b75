"""Records curves, rates and times of a training run, as JSON and for TensorBoard."""

from __future__ import annotations

import dataclasses
import json
import math
import os

import tensorflow as tf

from embedding_core.schema import Json
from embedding_core.training.eval_metrics import Evaluation


def _number(value: float) -> float | None:
    """Replace NaN and infinity, which JSON does not have, by None."""
    return value if math.isfinite(value) else None


def _entry(step: int, result: Evaluation) -> Json:
    entry: Json = {"step": step, "loss": _number(result.loss), "auc": _number(result.auc)}
    if len(result.tasks) > 1:
        entry["tasks"] = {
            name: {"loss": _number(figures.loss), "auc": _number(figures.auc)} for name, figures in result.tasks.items()
        }
    if result.metrics:
        entry["metrics"] = {name: _number(value) for name, value in result.metrics.items()}
    return entry


@dataclasses.dataclass
class History:
    """Curves of a run.

    Attributes:
      train: entries of `step`, `loss` (mean since the previous entry), `rows_per_second`.
      evals: entries of `step`, `loss` and `auc` (null if the eval split has one class, or no task is binary). With
        several tasks, `tasks` has loss and auc of each; if the model's module has `eval_metrics`, `metrics` has its
        figures.
      validations: entries as in `evals`, for the validation part of the train split; empty without early stopping.
      final: entry as in `evals` for the state that is returned. Its step is the chosen one; steps that trained on the
        validation part after it are not counted. Empty in runs of previous releases.
      seconds: seconds spent training, including those of the runs that this one resumed.
      facts: other values, such as numbers of rows, steps per epoch and the step of the final state.
    """

    train: list[Json] = dataclasses.field(default_factory=list)
    evals: list[Json] = dataclasses.field(default_factory=list)
    validations: list[Json] = dataclasses.field(default_factory=list)
    final: Json = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    facts: Json = dataclasses.field(default_factory=dict)

    def add_train(self, step: int, loss: float, rows_per_second: float) -> None:
        """Record the mean loss and the rate of the steps since the previous entry."""
        self.train.append({"step": step, "loss": _number(loss), "rows_per_second": round(rows_per_second, 1)})

    def add_eval(self, step: int, result: Evaluation) -> None:
        """Record an evaluation."""
        self.evals.append(_entry(step, result))

    def add_validation(self, step: int, result: Evaluation) -> None:
        """Record an evaluation of the validation part."""
        self.validations.append(_entry(step, result))

    def has_eval(self, step: int) -> bool:
        """Return whether there was an evaluation after that step."""
        return any(entry["step"] == step for entry in self.evals)

    def add_final(self, step: int, result: Evaluation | None) -> None:
        """Record the evaluation of the state that is returned; None is the one recorded after `step`."""
        known = next((entry for entry in self.evals if entry["step"] == step), {})
        self.final = known if result is None else _entry(step, result)

    def to_json(self) -> str:
        """Return the history as JSON, which `load` reads."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def save(self, path: str) -> None:
        """Write the history as JSON, and replace the file in one rename."""
        with tf.io.gfile.GFile(path + ".new", "w") as file:
            file.write(self.to_json())
        tf.io.gfile.rename(path + ".new", path, overwrite=True)

    @classmethod
    def load(cls, path: str) -> History:
        """Read what `save` wrote; an empty history if the file is missing or damaged."""
        if not tf.io.gfile.exists(path):
            return cls()
        with tf.io.gfile.GFile(path) as file:
            try:
                return cls(**json.loads(file.read()))
            except (ValueError, TypeError):
                return cls()


class Summaries:
    """Writes curves for TensorBoard, in the folders `train`, `validation` and `eval`."""

    def __init__(self, folder: str) -> None:
        """Open the writers of the three folders below `folder`."""
        self._train = tf.summary.create_file_writer(os.path.join(folder, "train"))
        self._eval = tf.summary.create_file_writer(os.path.join(folder, "eval"))
        self._validation = tf.summary.create_file_writer(os.path.join(folder, "validation"))

    def add_train(self, step: int, loss: float, rows_per_second: float) -> None:
        """Write loss and rate of the last steps."""
        with self._train.as_default(step=step):
            tf.summary.scalar("loss", loss)
            tf.summary.scalar("rows_per_second", rows_per_second)

    def add_eval(self, step: int, result: Evaluation) -> None:
        """Write the figures of an evaluation."""
        _write(self._eval, step, result)

    def add_validation(self, step: int, result: Evaluation) -> None:
        """Write the figures of an evaluation of the validation part."""
        _write(self._validation, step, result)

    def close(self) -> None:
        """Flush and close the files."""
        self._train.close()
        self._eval.close()
        self._validation.close()


def _write(writer: tf.summary.SummaryWriter, step: int, result: Evaluation) -> None:
    with writer.as_default(step=step):
        tf.summary.scalar("loss", result.loss)
        tf.summary.scalar("auc", result.auc)
        for name, figures in result.tasks.items() if len(result.tasks) > 1 else ():
            tf.summary.scalar(f"loss/{name}", figures.loss)
            tf.summary.scalar(f"auc/{name}", figures.auc)
        for name, value in result.metrics.items():
            tf.summary.scalar(f"metrics/{name}", value)

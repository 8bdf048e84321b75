"""Scores serialized tf.Examples in batches with the signatures of exported models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow_model_analysis.proto import config_pb2

from embedding_core.errors import ConfigError, DataError
from embedding_core.evaluation.queries import Numbering, ReadTokens
from embedding_core.record_files import open_records

Numbers: TypeAlias = npt.NDArray[np.float64]

_BATCH = 4096


@dataclasses.dataclass(frozen=True)
class ModelScores:
    """Label, prediction and weight of each row, `[rows]`, as one model gives them.

    For a multiclass label, the prediction is `[rows, classes]`, and the label is the position of the row's class. A row
    without a label has label 0, weight 0 and `known` 0; other rows have `known` 1. `user` is the number of the row's
    user; None if no metric needs users.
    """

    label: Numbers
    prediction: Numbers
    weight: Numbers
    known: Numbers
    user: npt.NDArray[np.int64] | None = None


@dataclasses.dataclass(frozen=True)
class ScoredBatch:
    """Some rows, as serialized tf.Examples, and their scores by the names of the model and of its output.

    The output of a model with one output has the name "".
    """

    serialized: npt.NDArray[np.object_]
    scores: Mapping[tuple[str, str], ModelScores]


class Scorer:
    """Computes labels, predictions and weights with one exported model.

    Attributes:
      model: the loaded SavedModel.
    """

    def __init__(self, folder: str, spec: config_pb2.ModelSpec, first: str = "") -> None:
        """Load the model.

        Args:
          folder: folder of a SavedModel.
          spec: names of its signatures and of their outputs.
          first: name of the output of the first label; "" for a model with one. The mappings of `spec` have no order.

        Raises:
          ConfigError: the model lacks a label or its prediction.
        """
        self.model = tf.saved_model.load(folder)
        (labels,) = spec.preprocessing_function_names
        signatures = self.model.signatures
        predict, label = signatures[spec.signature_name], signatures[labels]

        labels_of = dict(spec.label_keys) or {"": spec.label_key}
        predictions_of = dict(spec.prediction_keys) or {"": spec.prediction_key}
        for output, key in labels_of.items():
            if predictions_of[output] not in predict.structured_outputs or key not in label.structured_outputs:
                raise ConfigError(
                    f"the model in {folder!r} has no output {predictions_of[output]!r}: it was trained for other "
                    "labels. If it is the baseline, remove `evaluation.baseline` until a model with these labels is "
                    "pushed."
                )

        def score(serialized: tf.Tensor) -> dict[str, tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
            made, predicted = _call(label, serialized), _call(predict, serialized)
            scores = {}
            for output, key in labels_of.items():
                prediction, label_of = predicted[predictions_of[output]], _column(made[key])
                if prediction.shape[-1] == 1:
                    prediction = _column(prediction)
                weight = _column(made[spec.example_weight_key]) if spec.example_weight_key else tf.ones_like(label_of)
                scores[output] = label_of, prediction, weight
            return scores

        self._label = tf.function(
            lambda serialized: _column(_call(label, serialized)[labels_of[first]]),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        self._score = tf.function(score, input_signature=[tf.TensorSpec([None], tf.string)])

    def __call__(self, serialized: tf.Tensor) -> dict[str, ModelScores]:
        """Score serialized tf.Examples, string `[rows]`, for each output of the model."""
        return {
            output: _scores(*(value.numpy().astype(np.float64) for value in values))
            for output, values in self._score(serialized).items()
        }

    def positive(self, serialized: tf.Tensor) -> npt.NDArray[np.bool_]:
        """Return whether the label of each row (its first label if there are several) is 1, bool `[rows]`."""
        positive: npt.NDArray[np.bool_] = self._label(serialized).numpy() == 1
        return positive


def _scores(label: Numbers, prediction: Numbers, weight: Numbers) -> ModelScores:
    known = (~np.isnan(label)).astype(np.float64)
    return ModelScores(np.nan_to_num(label), prediction, weight * known, known)


def _call(signature: tf.types.experimental.ConcreteFunction, serialized: tf.Tensor) -> Mapping[str, tf.Tensor]:
    (name,) = signature.structured_input_signature[1]
    outputs: Mapping[str, tf.Tensor] = signature(**{name: serialized})
    return outputs


def _column(values: tf.Tensor) -> tf.Tensor:
    return tf.reshape(values, [-1])


def scored_batches(
    files: Sequence[str], scorers: Mapping[str, Scorer], users: ReadTokens | None = None
) -> Iterator[ScoredBatch]:
    """Score the rows of TFRecord files, in batches.

    Args:
      files: the files.
      scorers: the models by name.
      users: reads the user of each row; None if no metric needs users.

    Raises:
      DataError: the files have no rows, a file is damaged, or a prediction is not finite.
    """
    if not files:
        raise DataError("the eval split has no files: check the input and how it is split.")
    rows, numbering = 0, Numbering()
    try:
        for serialized in open_records(list(files)).batch(_BATCH).prefetch(1):
            scores = {
                (name, output): score
                for name, scorer in scorers.items()
                for output, score in scorer(serialized).items()
            }
            _check(scores, rows)
            scores = with_rows_of_all_models(scores)
            if users is not None:
                numbers = numbering.add(users(serialized))
                scores = {key: dataclasses.replace(score, user=numbers) for key, score in scores.items()}
            yield ScoredBatch(serialized.numpy(), scores)
            rows += len(serialized)
    except tf.errors.OpError as error:
        raise DataError(f"cannot evaluate {list(files)}: {error.message}") from error
    if not rows:
        raise DataError(f"the eval split has no rows in {list(files)}: check the input and how it is split.")


def with_rows_of_all_models(scores: Mapping[tuple[str, str], ModelScores]) -> dict[tuple[str, str], ModelScores]:
    """Give models that are compared on a multiclass label the same rows, even if their classes differ.

    A model without the class of a row gives this class the probability 0: its label becomes one more class. A row whose
    class no model has stays left out.
    """
    made = dict(scores)
    for output in dict.fromkeys(output for _, output in scores):
        keys = [key for key in scores if key[1] == output]
        if len(keys) == 1 or scores[keys[0]].prediction.ndim == 1:
            continue
        known = np.maximum.reduce([scores[key].known for key in keys])
        if all((scores[key].known == known).all() for key in keys):
            continue  # copies of many rows and classes
        weight = np.maximum.reduce([scores[key].weight for key in keys])
        for key in keys:
            score = scores[key]
            label = np.where(known > score.known, float(score.prediction.shape[1]), score.label)
            prediction = np.pad(score.prediction, ((0, 0), (0, 1)))
            made[key] = dataclasses.replace(score, label=label, prediction=prediction, weight=weight, known=known)
    return made


def _check(scores: Mapping[tuple[str, str], ModelScores], rows: int) -> None:
    for (name, _), score in scores.items():
        finite = np.isfinite(score.prediction).reshape(len(score.prediction), -1)
        if not finite.all():
            row = rows + int(np.argmin(finite.all(axis=1)))
            value = float(score.prediction.reshape(finite.shape)[row - rows][np.argmin(finite[row - rows])])
            which = f"model {name!r}" if name else "the model"
            raise DataError(f"{which} predicts {value!r} for row {row} of the eval split: a prediction must be finite.")

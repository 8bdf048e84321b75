"""What a run is made of, and the batches that come of it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.errors import DataError
from embedding_core.training.config import TrainingConfig
from embedding_core.training.inputs import Batch, Inputs, RowParser
from embedding_core.training.negatives import negative_sampler
from embedding_core.training.stream import batches_once, count_rows, shuffled_batches, steps_per_epoch

__all__ = ["JobData", "TrainingJob", "data_errors"]

_ASSERTION = re.compile(r"assertion failed: (.*?)(?:\n|$)", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Everything that a run is made of.

    Attributes:
      inputs: where the model's inputs come from.
      training: how to train.
      model: dotted module with `build`.
      arguments: of `build`.
      train_files, eval_files: TFRecord files of tf.Examples; names ending in .gz are gzipped.
      counts: how often each token is in the data, int64, by vocabulary name; for negatives by "count".
      warm_start: loads tables and slots into a new engine, before step 0; None starts from initial rows.
    """

    inputs: Inputs
    training: TrainingConfig
    model: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    train_files: Sequence[str]
    eval_files: Sequence[str]
    counts: Mapping[str, npt.NDArray[np.int64]] = dataclasses.field(default_factory=dict)
    warm_start: Callable[[Any], None] | None = None


@contextlib.contextmanager
def data_errors() -> Iterator[None]:
    """Turn TensorFlow's errors on bad rows into one line."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
        raise DataError(_rule_broken(error.message)) from error
    except UnicodeDecodeError as error:  # TensorFlow's message quotes a row that is not UTF-8
        raise DataError(_rule_broken(error.object.decode(errors="replace"))) from error


def _rule_broken(message: str) -> str:
    """The one line of TensorFlow's message that says what is wrong with the data."""
    message = " ".join(message.split())
    match = _ASSERTION.search(message)
    return (match[1] if match else message).split(" [[")[0]


class JobData:
    """The batches of a job: endless ones to train on, one pass to evaluate."""

    def __init__(self, job: TrainingJob) -> None:
        """Count the rows, and load the vocabularies.

        Raises:
          DataError: a split is empty or cannot be read.
        """
        self._job = job
        self._parser = RowParser(job.inputs)
        self.rows = count_rows(job.train_files, "train")
        self.eval_rows = count_rows(job.eval_files, "eval")
        self.steps_per_epoch = steps_per_epoch(self.rows, job.training.batch_size)
        self.steps = job.training.steps or (job.training.epochs or 1) * self.steps_per_epoch
        self._sampler = self._make_sampler()
        self._eval = self._eval_batches()

    def _make_sampler(self) -> Callable[[tf.Tensor, Batch], Batch] | None:
        negatives, config = self._job.training.negatives, self._job.inputs.config
        if negatives is None:
            return None
        counts = None
        if negatives.distribution == "count" and negatives.feature in {feature.name for feature in config.features}:
            counts = self._job.counts.get(config.table_of(negatives.feature).vocabulary or "")
        seed, dense = self._job.training.seed, self._job.inputs.dense
        return negative_sampler(negatives, config, seed=seed, dense=dense, counts=counts)

    def train(self, start: int) -> tf.data.Dataset:
        """Batches from step `start` on."""
        batches = shuffled_batches(self._job.train_files, self._job.training, rows=self.rows, start=start)
        return self._finish(batches, self._sampler)

    def _finish(self, batches: tf.data.Dataset, sampler: Callable[[tf.Tensor, Batch], Batch] | None) -> tf.data.Dataset:
        def parse(step: tf.Tensor, serialized: tf.Tensor) -> Batch:
            batch = self._parser(serialized)
            return batch if sampler is None else sampler(step, batch)

        return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(4)

    def _eval_batches(self) -> tf.data.Dataset:
        """The eval split, with negatives where it has none of its own, and the same ones at every evaluation."""
        batches = batches_once(self._job.eval_files, max(1024, self._job.training.batch_size))
        plain = self._finish(batches, None)
        if self._sampler is None:
            return plain
        with data_errors():
            positives = plain.map(lambda batch: tf.reduce_all(batch["label"] > 0.5))
            only_positives = bool(positives.reduce(tf.constant(True), tf.logical_and))
        return self._finish(batches, self._sampler) if only_positives else plain

    def eval(self) -> tf.data.Dataset:
        """All batches of the eval split."""
        return self._eval

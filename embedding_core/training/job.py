"""What a run is made of, and the batches that come of it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.errors import DataError
from embedding_core.training.config import TrainingConfig
from embedding_core.training.dense_start import DenseStart
from embedding_core.training.device_choice import Placement
from embedding_core.training.host_files import HostRows, check_batch, check_input_of_hosts, shares_of
from embedding_core.training.negatives import negative_sampler
from embedding_core.training.row_stream import (
    batches_once,
    count_rows,
    rows_of_files,
    shuffled_batches,
    steps_per_epoch,
)
from embedding_core.training.training_inputs import Batch, Inputs, RowParser
from embedding_core.training.validation_split import Keep, parts_of

Sampler: TypeAlias = Callable[[tf.Tensor, Batch], Batch]
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
      warm_start: fills tables and slots, by `<table>` and `<table>/<slot>`, before step 0; None starts from initial
        rows.
      dense_start: what the dense part starts from before step 0; None starts from new weights.
      ranges: by dense feature what it is scaled by, JSON objects that are kept with the weights.
      shard_files: whether each host of a TPU reads files of its own (see `shares`); None: on a real one of several
        hosts, where there are as many files. Otherwise every host reads all of them, and takes its part of each batch.
    """

    inputs: Inputs
    training: TrainingConfig
    model: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    train_files: Sequence[str]
    eval_files: Sequence[str]
    counts: Mapping[str, npt.NDArray[np.int64]] = dataclasses.field(default_factory=dict)
    warm_start: Callable[[Mapping[str, tf.Variable]], None] | None = None
    dense_start: DenseStart | None = None
    ranges: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    shard_files: bool | None = None


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
    """The batches of a job: endless ones to train on, one pass to evaluate.

    Attributes:
      rows: to train on: of the train split, without the validation part.
      validation_rows: of the validation part of the train split; 0 without early stopping.
      eval_rows: of the eval split.
      steps_per_epoch: batches of one pass.
      steps: of the whole run.
      hosts_apart: how many hosts train on rows of their own; 1 where every batch is read whole.
      rows_per_replica: of a batch, negatives counted; batches that are short are filled up on a TPU.
    """

    def __init__(self, job: TrainingJob, placement: Placement) -> None:
        """Count the rows, and load the vocabularies.

        Raises:
          DataError: a split is empty or cannot be read, or has too few files for the hosts.
          ConfigError: a host of several could not read or transform its rows.
        """
        if placement.kind == "tpu" and placement.hosts > 1:
            check_input_of_hosts([*job.train_files, *job.eval_files], job.inputs)
        self._job, self._placement = job, placement
        self._parsers: list[RowParser] = []
        self._keep: dict[str, Keep] = {}
        if job.training.early_stopping is not None:
            parts = parts_of(job.training.early_stopping.validation_fraction)
            self._keep = dict(zip(("train", "validation"), parts, strict=True))
        self._files = {"train": job.train_files, "eval": job.eval_files}
        self._splits = {name: self._shares(name) for name in self._files}
        self.rows, self.eval_rows = (sum(share.rows for share in shares) for shares in self._splits.values())
        self.validation_rows = self._add_validation() if self._keep else 0
        self.hosts_apart = len(self._splits["train"])
        self.steps_per_epoch = self._steps("train")
        self.steps = job.training.steps or (job.training.epochs or 1) * self.steps_per_epoch
        self._sampler = self._make_sampler()
        self.rows_per_replica = placement.rows_per_replica(self._with_negatives(job.training.batch_size))
        self._eval = self._once("eval")
        self._validation = self._once("validation") if self.validation_rows else None

    def _add_validation(self) -> int:
        """Add the validation part, which every host reads whole; its rows."""
        files = tuple(self._job.train_files)
        rows = count_rows(files, "train") - self.rows
        self._files["validation"] = files
        self._splits["validation"] = [HostRows(files, rows)]
        return rows

    def _make_sampler(self) -> Sampler | None:
        negatives, config = self._job.training.negatives, self._job.inputs.config
        if negatives is None:
            return None
        counts = None
        if negatives.distribution == "count" and negatives.feature in {feature.name for feature in config.features}:
            counts = self._job.counts.get(config.table_of(negatives.feature).vocabulary or "")
        seed, dense = self._job.training.seed, self._job.inputs.dense
        return negative_sampler(negatives, config, seed=seed, dense=dense, counts=counts)

    def _shares(self, split: str) -> list[HostRows]:
        """What each host reads for itself; one that is for all where each reads everything."""
        files, keep = self._files[split], self._keep.get(split)
        hosts, wanted = self._placement.hosts, self._job.shard_files
        if hosts > 1 and (wanted or (wanted is None and self._placement.kind == "tpu")):
            check_batch(self._job.training.batch_size, hosts)
            shares = shares_of(files, rows_of_files(files, split, keep), hosts, split, must=bool(wanted))
            if shares:
                return shares
        return [HostRows(tuple(files), count_rows(files, split, keep))]

    def _steps(self, split: str) -> int:
        """Batches of one pass: until the last host is through."""
        shares = self._splits[split]
        return max(steps_per_epoch(share.rows, self._job.training.batch_size // len(shares)) for share in shares)

    def train(self, start: int) -> Any:
        """Batches from step `start` on, per replica where there are several."""
        training, shares = self._job.training, self._splits["train"]

        def serialized(host: int) -> tf.data.Dataset:
            files, rows = shares[host % len(shares)]
            size = training.batch_size // len(shares)
            own = shuffled_batches(
                files,
                training,
                rows=rows,
                start=start,
                batch_size=size,
                steps=self.steps_per_epoch,
                keep=self._keep.get("train"),
            )
            return own.map(lambda step, examples: (step * len(shares) + host % len(shares), examples))

        return self._batches(serialized, "train", training.batch_size, self._sampler)

    def eval(self) -> Any:
        """All batches of the eval split, per replica where there are several."""
        return self._eval

    def validation(self) -> Any:
        """All batches of the validation part, per replica if there are several; None without any rows in it."""
        return self._validation

    def _batches(
        self, serialized: Callable[[int], tf.data.Dataset], split: str, rows: int, sampler: Sampler | None
    ) -> Any:
        """Parsed batches of at most so many rows, to which come the negatives."""
        size = self._with_negatives(rows)  # whether or not any are drawn: a TPU's batches are all of one size
        return self._placement.batches(
            lambda host: _parsed(serialized(host), self._parser(), sampler), size, own_rows=len(self._splits[split]) > 1
        )

    def _with_negatives(self, rows: int) -> int:
        negatives = self._job.training.negatives
        return rows if negatives is None else rows * (1 + negatives.per_positive)

    def _parser(self) -> RowParser:
        """One for all datasets; on a TPU one for each, as it must live on the host of its dataset."""
        if not self._parsers or self._placement.on_tpu:
            self._parsers.append(RowParser(self._job.inputs))
        return self._parsers[-1]

    def _once(self, split: str) -> Any:
        """The rows to evaluate, with negatives if they have none of their own, the same ones at every evaluation."""
        batch_size = self._job.training.batch_size
        rows = batch_size if self._placement.on_tpu else max(1024, batch_size)

        shares, keep = self._splits[split], self._keep.get(split)

        def whole() -> tf.data.Dataset:
            return batches_once(self._files[split], rows, keep=keep)

        def serialized(host: int) -> tf.data.Dataset:
            if len(shares) == 1:
                return whole()
            files, own = shares[host]
            return batches_once(files, rows // len(shares), rows=own, steps=self._steps(split), keep=keep)

        sampler = self._sampler
        if sampler is not None:
            with data_errors():
                positives = _parsed(whole(), self._parser(), None).map(
                    lambda batch: tf.reduce_all(batch["label"] > 0.5)
                )
                if not bool(positives.reduce(tf.constant(True), tf.logical_and)):
                    sampler = None
        return self._batches(serialized, split, rows, sampler)


def _parsed(serialized: tf.data.Dataset, parser: RowParser, sampler: Sampler | None) -> tf.data.Dataset:
    def parse(step: tf.Tensor, examples: tf.Tensor) -> Batch:
        batch = parser(examples)
        return batch if sampler is None else sampler(step, batch)

    return serialized.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(4)

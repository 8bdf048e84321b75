"""Defines a training job, and makes its batches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.checkpoint.retrieve import Blocks
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import sequence_lengths
from embedding_core.schema import Json
from embedding_core.storage import remove_folder
from embedding_core.tracing import as_written
from embedding_core.training.dense_start import Ranges
from embedding_core.training.device_choice import Batches, Placement
from embedding_core.training.drawn_candidates import (
    WholeCandidates,
    candidate_counts,
    candidate_sampler,
    drawn_rows,
    negative_sampler,
    whole_candidates,
)
from embedding_core.training.encoded_rows import RowFormat, RowsFolder, encode_files, seal_split, whole_split
from embedding_core.training.row_stream import (
    HostRows,
    Keep,
    Passes,
    batches_once,
    check_batch,
    check_input_of_hosts,
    count_rows,
    files_by_host,
    rows_of_files,
    shuffled_batches,
    split_filters,
    steps_per_epoch,
)
from embedding_core.training.training_inputs import Batch, Inputs, RowParser, data_errors
from embedding_core.training_config import DenseStart, Softmax, TrainingConfig

Sampler: TypeAlias = Callable[[tf.Tensor, Batch], Batch]
Encoding: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of a split, its number of rows and how many of them are encoded."""
_ROWS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Everything that defines a training run.

    Attributes:
      inputs: source of the model's inputs.
      training: settings of the training.
      model: dotted module with `build`.
      arguments: arguments of `build`.
      train_files, eval_files: TFRecord files of tf.Examples; names ending in .gz are gzipped.
      counts: count of each token in the data, int64, by vocabulary name; needed for a softmax, and for negatives by
        "count".
      warm_start: function that fills tables and slots, by `<table>` and `<table>/<slot>`, before step 0; None starts
        from initial rows. A table may be in several blocks of rows.
      dense_start: source of the dense part's weights at step 0; None starts from new weights.
      ranges: scale of each dense feature, JSON objects that are kept with the weights.
      engine_arguments: arguments of the layer that the engine of an optional room takes.
      shard_files: whether each host of a TPU reads different files (see `files_by_host`); if not, every host reads all
        files and takes its part of each batch. None shards on a real TPU if there are at least as many files as hosts.
    """

    inputs: Inputs
    training: TrainingConfig
    model: str
    arguments: Json = dataclasses.field(default_factory=dict)
    train_files: Sequence[str]
    eval_files: Sequence[str]
    counts: Mapping[str, npt.NDArray[np.int64]] = dataclasses.field(default_factory=dict)
    warm_start: Callable[[Mapping[str, Blocks]], None] | None = None
    dense_start: DenseStart | None = None
    ranges: Ranges = dataclasses.field(default_factory=dict)
    engine_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shard_files: bool | None = None


def rows_with_drawn(training: TrainingConfig, rows: int, hosts: int = 1) -> int:
    """Count the rows of a global batch with the negatives or the candidates that are drawn for it.

    Args:
      training: settings of the training.
      rows: rows of the data; each counts as a positive.
      hosts: number of hosts that read different rows.
    """
    if training.softmax is not None:
        return rows + drawn_rows(training.softmax, hosts) * hosts
    return rows if training.negatives is None else rows * (1 + training.negatives.per_positive)


class JobData:
    """The batches of a job: an endless stream to train on, the validation part, and one pass to evaluate.

    Attributes:
      rows: number of rows of the train split without the validation part.
      validation_rows: number of rows of the validation part of the train split; 0 without early stopping.
      eval_rows: number of rows of the eval split.
      steps_per_epoch: number of batches of one pass.
      steps: number of batches of the whole run.
      hosts_apart: number of hosts that read different rows; 1 if every host reads whole batches.
      rows_per_replica: rows of a replica's batch, negatives included; on a TPU, short batches are padded to this size.
    """

    def __init__(
        self,
        job: TrainingJob,
        placement: Placement,
        folder: RowsFolder | None = None,
        encoding: Encoding = lambda split, rows, done: None,
    ) -> None:
        """Count the rows, load the vocabularies, and encode the splits that are read several times.

        Args:
          job: the job.
          placement: the devices that it trains on.
          folder: folder for encoded rows; it must exist as long as this object. With None, on a TPU, and if hosts read
            files of their own, every pass parses the rows again.
          encoding: called while rows are encoded; it may raise an error to stop.

        Raises:
          DataError: a split is empty or cannot be read, or has too few files for the hosts.
          ConfigError: one of several hosts could not read or transform its rows.
        """
        if placement.kind == "tpu" and placement.hosts > 1:
            check_input_of_hosts([*job.train_files, *job.eval_files], job.inputs)
        self._job, self._placement = job, placement
        self._parsers: list[RowParser] = []
        self._keep: dict[str, Keep] = {}
        if job.training.early_stopping is not None:
            filters = split_filters(job.training.early_stopping.validation_fraction)
            self._keep = dict(zip(("train", "validation"), filters, strict=True))
        self._files: dict[str, Sequence[str]] = {"train": job.train_files, "eval": job.eval_files}
        self._splits = {name: self._files_by_host(name) for name in self._files}
        self.rows, self.eval_rows = (sum(host.rows for host in hosts) for hosts in self._splits.values())
        self.validation_rows = self._add_validation() if self._keep else 0
        self.hosts_apart = len(self._splits["train"])
        self.steps_per_epoch = self._steps("train")
        self.steps = job.training.steps or (job.training.epochs or 1) * self.steps_per_epoch
        self.rows_per_replica = placement.rows_per_replica(
            rows_with_drawn(job.training, job.training.batch_size, self.hosts_apart)
        )
        self._format = RowFormat(job.inputs)
        self._encoded = set[str]()
        if folder is not None and self.hosts_apart == 1 and not placement.on_tpu:
            self._encode(folder, encoding)
        self._sampler = self._make_sampler()
        self._eval = self._once("eval")
        self._validation = self._once("validation") if self.validation_rows else None

    def _add_validation(self) -> int:
        """Add the validation part, which is in the files of the train split; return its number of rows."""
        files = tuple(self._job.train_files)
        rows = count_rows(files, "train") - self.rows
        self._files["validation"] = files
        is_split = len(self._splits["train"]) > 1 and rows
        self._splits["validation"] = self._files_by_host("validation") if is_split else [HostRows(files, rows)]
        return rows

    def _encode(self, folder: RowsFolder, encoding: Encoding) -> None:
        """Encode the splits that no previous training encoded, except the train split if it is read only once."""
        parse: Callable[[tf.Tensor], Batch] | None = None
        for split in self._files:
            if split == "train" and self.steps <= self.steps_per_epoch:
                continue
            below, keep = os.path.join(folder.path, split), self._keep.pop(split, None)
            rows = sum(host.rows for host in self._splits[split])
            files = whole_split(below) if folder.is_kept else None
            if files is None:
                remove_folder(below)
                os.mkdir(below)
                done = functools.partial(encoding, split, rows)
                with data_errors():
                    parse = parse or self._parser().traced()  # one trace for all splits
                    files = encode_files(self._files[split], below, parse, self._format, keep=keep, done=done)
                if folder.is_kept:
                    seal_split(below)
            self._files[split] = files
            self._splits[split] = [HostRows(tuple(files), rows)]
            self._encoded.add(split)

    def _make_sampler(self) -> Sampler | None:
        negatives, config = self._job.training.negatives, self._job.inputs.config
        softmax, seed = self._job.training.softmax, self._job.training.seed
        if softmax is not None:
            counts = self._counts_of(softmax.feature)
            candidates = self._whole_candidates(softmax)
            return candidate_sampler(
                softmax, config, seed=seed, hosts=self.hosts_apart, counts=counts, candidates=candidates
            )
        if negatives is None:
            return None
        by_count = negatives.distribution == "count" and not negatives.within_batch
        counts = self._counts_of(negatives.feature) if by_count else None
        dense = self._job.inputs.dense
        return negative_sampler(negatives, config, seed=seed, dense=dense, counts=counts)

    def _whole_candidates(self, softmax: Softmax) -> WholeCandidates | None:
        """Read the other features of drawn candidates from the train split; None if there are none."""
        config, names = self._job.inputs.config, {feature.name for feature in self._job.inputs.config.features}
        others = softmax.other_features
        if not softmax.sampled or not others or softmax.feature not in names:
            return None
        unknown = sorted(set(others) - names - set(self._job.inputs.dense))
        if unknown:
            raise ConfigError(
                f"`candidate_features` of softmax has {unknown[0]!r}: each must be one of the features "
                f"{', '.join([*sorted(names), *self._job.inputs.dense])}."
            )
        table = config.table_of(softmax.feature)
        records = batches_once(self._files["train"], _ROWS_AT_ONCE, keep=self._keep.get("train"))
        with data_errors():
            rows = read_batches(records, self._reader("train"), None, config)
            return whole_candidates(rows, softmax.feature, others, table.vocabulary_size - table.oov_rows)

    def _counts_of(self, feature: str) -> npt.NDArray[np.int64] | None:
        """Count the tokens of a feature in the train split; None if there is no such feature, or its counts lack."""
        if feature not in {known.name for known in self._job.inputs.config.features}:
            return None
        with data_errors():
            return candidate_counts(self._job.inputs, feature, self._job.train_files, self._job.counts)

    def _files_by_host(self, split: str) -> list[HostRows]:
        """Assign the files of a split to hosts; return a single entry if every host reads all files."""
        files, keep = self._files[split], self._keep.get(split)
        hosts, wanted = self._placement.hosts, self._job.shard_files
        if hosts > 1 and (wanted or (wanted is None and self._placement.splits_files)):
            check_batch(self._job.training.batch_size, hosts)
            by_host = files_by_host(files, rows_of_files(files, split, keep), hosts, split, must=bool(wanted))
            if by_host:
                return by_host
        return [HostRows(tuple(files), count_rows(files, split, keep))]

    def _steps(self, split: str) -> int:
        """Count the batches of one pass, which ends when the last host has read its rows."""
        by_host = self._splits[split]
        return max(steps_per_epoch(host.rows, self._job.training.batch_size // len(by_host)) for host in by_host)

    def train(self, start: int) -> Batches:
        """Make the batches from step `start` on, per replica if there are several."""
        return self._shuffled("train", start, 0)

    def all_batches(self) -> Iterator[Batch]:
        """Yield the batches of a training to its last step, and those of the validation part after it."""
        yield from itertools.islice(self.train(0), self.steps)
        if self.all_steps > self.steps:
            yield from itertools.islice(self.train_on_validation(), self.all_steps - self.steps)

    @property
    def all_steps(self) -> int:
        """Number of the batches of `all_batches`."""
        return self.steps + self.validation_steps(self.steps)

    def train_on_validation(self) -> Batches:
        """Make shuffled batches of the validation part, per replica if there are several.

        The draws of negatives and candidates continue those of the last planned step, even if training ends sooner. So
        the batches are known before training.
        """
        return self._shuffled("validation", 0, self.steps)

    def validation_steps(self, step: int) -> int:
        """Count the steps on the validation part after `step` steps: one pass, but at most its share of `step`."""
        stopping = self._job.training.early_stopping
        if not self.validation_rows or stopping is None or not stopping.train_on_validation:
            return 0
        return min(self._steps("validation"), math.ceil(step * self.validation_rows / self.rows))

    def _shuffled(self, split: str, start: int, before: int) -> Batches:
        """Make endless batches to train on.

        Args:
          split: "train" or "validation".
          start: number of the first batch; determines the order of the rows.
          before: number of steps before batch 0; determines what is drawn.
        """
        training, by_host = self._job.training, self._splits[split]

        def serialized(host: int) -> tf.data.Dataset:
            part = host % len(by_host)
            batches = shuffled_batches(
                by_host[part].files,
                training,
                rows=by_host[part].rows,
                start=start,
                batch_size=training.batch_size // len(by_host),
                steps=self._steps(split),
                keep=self._keep.get(split),
            )
            return batches.map(as_written(lambda step, examples: ((before + step) * len(by_host) + part, examples)))

        whole = min(training.batch_size, self.rows) / len(by_host)
        return self._batches(serialized, split, training.batch_size, self._sampler, whole)

    def eval(self) -> Iterable[Batch]:
        """Return all batches of the eval split, per replica if there are several."""
        return self._eval

    def validation(self) -> Iterable[Batch] | None:
        """Return all batches of the validation part, per replica if there are several; None if it has no rows."""
        return self._validation

    def _batches(
        self,
        serialized: Callable[[int], tf.data.Dataset],
        split: str,
        rows: int,
        sampler: Sampler | None,
        whole: float | None = None,
    ) -> Batches:
        """Read batches of at most `rows` rows, and add negatives to them; `whole` as in `read_batches`."""
        # Even if none are drawn: all batches of a TPU have one size.
        size = rows_with_drawn(self._job.training, rows, self.hosts_apart)
        return self._placement.batches(
            lambda host: read_batches(serialized(host), self._reader(split), sampler, self._job.inputs.config, whole),
            size,
            own_rows=len(self._splits[split]) > 1,
        )

    def _reader(self, split: str) -> Callable[[tf.Tensor], Batch]:
        return self._format.decode if split in self._encoded else self._parser()

    def _parser(self) -> RowParser:
        """Return one parser for all datasets; on a TPU one per dataset, because it must be on the dataset's host."""
        if not self._parsers or self._placement.on_tpu:
            self._parsers.append(RowParser(self._job.inputs))
        return self._parsers[-1]

    @property
    def eval_steps(self) -> int:
        """Number of batches of `eval`."""
        by_host = self._splits["eval"]
        return self._steps("eval") if len(by_host) > 1 else steps_per_epoch(self.eval_rows, self._rows_once())

    def _rows_once(self) -> int:
        """Return the rows of a batch to evaluate."""
        batch_size = self._job.training.batch_size
        # The loss of a softmax depends on the batch, whose rows compete, so it needs the same batches on every device.
        same = self._placement.on_tpu or self._job.training.softmax is not None
        return batch_size if same else max(1024, batch_size)

    def _once(self, split: str) -> Iterable[Batch]:
        """Make the batches to evaluate; if all rows are positive, add the same negatives at every evaluation."""
        rows = self._rows_once()
        by_host, keep = self._splits[split], self._keep.get(split)

        def serialized(host: int) -> tf.data.Dataset:
            if len(by_host) == 1:
                return batches_once(self._files[split], rows, keep=keep)
            files, count = by_host[host]
            return batches_once(files, rows // len(by_host), rows=count, steps=self._steps(split), keep=keep)

        sampler = self._sampler_once(split)
        batches: Iterable[Batch] = self._batches(serialized, split, rows, sampler)
        if self._placement.on_tpu:
            return batches
        return Passes(batches, steps_per_epoch(by_host[0].rows, rows))

    def _sampler_once(self, split: str) -> Sampler | None:
        """Return what adds negatives to the batches to evaluate; None if the split has rows of label 0."""
        if self._sampler is None or self._job.training.softmax is not None:
            return self._sampler
        records = batches_once(self._files[split], max(1024, self._job.training.batch_size), keep=self._keep.get(split))
        with data_errors():
            positives = read_batches(records, self._reader(split), None, self._job.inputs.config).map(
                as_written(lambda batch: tf.reduce_all(batch["label"] > 0.5))
            )
            all_positive = positives.reduce(tf.constant(True), tf.logical_and)
        return self._sampler if bool(all_positive) else None


def read_batches(
    records: tf.data.Dataset,
    read: Callable[[tf.Tensor], Batch],
    sampler: Sampler | None,
    config: EmbeddingConfig,
    whole: float | None = None,
) -> tf.data.Dataset:
    """Read the batches, with the `share` that each has of a whole batch, which has `whole` rows before negatives."""

    @as_written
    def batch_of(step: tf.Tensor, serialized: tf.Tensor) -> Batch:
        batch = read(serialized) if sampler is None else sampler(step, read(serialized))
        lengths = sequence_lengths(config, batch["ids"])
        if lengths:
            batch = cast(Batch, {**batch, "lengths": lengths})
        if whole is not None:
            batch = cast(Batch, {**batch, "share": tf.cast(tf.size(serialized), tf.float32) / whole})
        return batch

    return records.map(batch_of, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(4)

"""Computes the limits of SparseCores over the batches that a training and its evaluations will look up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.planning.topology import Topology
from embedding_core.schema import Json
from embedding_core.sparse_cores import (
    BatchIds,
    Ids,
    LimitCounter,
    Slice,
    drift_of,
    larger_limits,
    limits_in_all_forms,
    slice_of,
    stacks_of,
)
from embedding_core.storage import scratch_folder
from embedding_core.training.device_choice import Batches, Placement
from embedding_core.training.encoded_rows import RowsFolder
from embedding_core.training.job import JobData, TrainingJob
from embedding_core.training.training_inputs import Batch, data_errors

MAX_ROWS = 20_000_000
"""Rows, with negatives, that are counted at most; of more, a bound is computed."""
_CONFIDENCE = 0.99
_ASSUMPTION = "the batches that were not drawn are like those that were: the shuffle buffer mixes the rows"


class _Hosts(Placement):
    """Reads the batches of all hosts of a slice in this process.

    Attributes:
      number: number of hosts.
      evaluates: whether batches to evaluate are those of a TPU, of the training's size; encoded rows are then not used.
    """

    number = 1
    evaluates = False

    @property
    def on_tpu(self) -> bool:
        """Whether `JobData` is to make the batches of a TPU."""
        return self.evaluates

    @property
    def splits_files(self) -> bool:
        """Whether hosts read different files, as those of a TPU do."""
        return True

    @property
    def hosts(self) -> int:
        """Number of hosts of the slice."""
        return self.number

    def batches(self, make: Callable[[int], tf.data.Dataset], rows: int, *, own_rows: bool = False) -> Batches:
        """Make a dataset of tuples: the batch of each host that reads rows of its own, or the global batch."""
        return tf.data.Dataset.zip(tuple(make(host) for host in range(self.hosts if own_rows else 1)))


def sparse_core_limits(
    job: TrainingJob,
    topology: Topology,
    *,
    previous: Sequence[Mapping[str, object]] | None = None,
    max_rows: int = MAX_ROWS,
    check: Callable[[], None] = lambda: None,
) -> Json | None:
    """Draw the batches of a training and its evaluations, and compute the limits of each stack of tables.

    The batches are those of the trainer, to the row: `JobData` makes both, with the same seed, shuffle, validation
    part, negatives and hosts. If early stopping ends the training sooner, its batches are among these.
    Evaluations look up the eval split and the validation part with the same program, so the limits cover their batches
    too.

    Args:
      job: the training; its model is not used.
      topology: the slice to train on.
      previous: "stacks" of what this function returned in a previous run, for the drift.
      max_rows: number of rows, with negatives, that are counted at most. Of a longer training, the first batches are
        counted, and `LimitCounter.bounds` bounds the others.
      check: called for each batch; it may raise an error to stop.

    Returns:
      None if the slice has no SparseCores, else a JSON object: "topology", "chips", "sparse_cores_per_chip",
      "batch_size" (with negatives), "method" ("exact" or "bound"), "batches" (of the whole training), "batches_drawn",
      "batches_evaluated", "confidence" and "assumption" (of a bound, else null), "stacks" (`Limits` of each), "forms"
      (`limits_in_all_forms`) and "drift" (`drift_of`; null without a previous run).

    Raises:
      ConfigError: the batch cannot be divided among the SparseCores, or `max_rows` is too small for a bound.
      DataError: the data breaks a rule.
    """
    slice_ = slice_of(topology)
    if slice_ is None:
        return None
    config, limits = job.inputs.config, []
    with scratch_folder("rows") as folder:
        data = _job_data(job, topology, RowsFolder(folder, False), check)
        size = data.rows_per_replica
        steps = data.all_steps
        drawn = min(steps, max(1, max_rows // size))
        counters = _counters(config, slice_, size)
        _count(itertools.islice(global_batches(data, size), drawn), counters, check)
    exact = drawn == steps
    evaluated = _counters(config, slice_, size)
    _count(evaluated_batches(job, topology, size), evaluated, check)
    for counter, other in zip(counters, evaluated, strict=True):
        trained = counter.limits() if exact else counter.bounds(steps, _CONFIDENCE)
        limits.append(larger_limits(trained, other.limits()))
    return {
        "topology": topology.name,
        "chips": slice_.chips,
        "sparse_cores_per_chip": slice_.per_chip,
        "batch_size": size,
        "method": "exact" if exact else "bound",
        "batches": steps,
        "batches_drawn": drawn,
        "batches_evaluated": evaluated[0].batches,
        "confidence": None if exact else _CONFIDENCE,
        "assumption": None if exact else _ASSUMPTION,
        "stacks": [limit.to_mapping() for limit in limits[0]],
        "forms": limits_in_all_forms(limits[0], limits[-1]),
        "drift": None if previous is None else drift_of(limits[0], previous, counters[0]),
    }


def _counters(config: EmbeddingConfig, slice_: Slice, size: int) -> list[LimitCounter]:
    """Make a counter of TensorFlow's stacks, and if these mix combiners, one of stacks that keep combiners apart."""
    layouts = (stacks_of(config, slice_, size, by_combiner=apart) for apart in (False, True))
    return [LimitCounter(config, slice_, size, stacks) for stacks in dict.fromkeys(layouts)]


def _count(batches: Iterable[BatchIds], counters: Sequence[LimitCounter], check: Callable[[], None]) -> None:
    for batch in batches:
        check()
        for counter in counters:
            counter.add(batch)


def _job_data(
    job: TrainingJob,
    topology: Topology,
    folder: RowsFolder | None,
    check: Callable[[], None],
    *,
    evaluates: bool = False,
) -> JobData:
    """Make the batches of all hosts; `evaluates` as in `_Hosts`."""
    placement = _Hosts("cpu", tf.distribute.get_strategy())
    placement.number, placement.evaluates = topology.hosts, evaluates
    return JobData(job, placement, folder, lambda split, rows, done: check())


def evaluated_batches(job: TrainingJob, topology: Topology, size: int) -> Iterator[BatchIds]:
    """Yield the ids of the global batches of one evaluation: those of the eval split and of the validation part.

    Args:
      job: the training.
      topology: the slice.
      size: number of rows of a whole batch of the training, with negatives.

    Raises:
      DataError: the data breaks a rule.
    """
    data = _job_data(job, topology, None, lambda: None, evaluates=True)
    with data_errors():
        for batches in (data.eval(), data.validation() or ()):
            yield from (_joined(batch, size) for batch in batches)


def global_batches(data: JobData, size: int) -> Iterator[BatchIds]:
    """Yield the ids of the global batches from step 0 to the last step, and of those of the validation part after it.

    Args:
      data: the batches of a job whose placement is not a TPU.
      size: number of rows of a whole batch, with negatives.

    Raises:
      DataError: the data breaks a rule.
    """
    with data_errors():
        for batch in data.all_batches():
            yield _joined(batch, size)


def _joined(batch: Batch | tuple[Batch, ...], size: int) -> BatchIds:
    """Join the parts of the hosts to a global batch; each host's part is filled with empty rows."""
    parts = batch if isinstance(batch, tuple) else (batch,)
    return {name: _joined_ids([part["ids"][name] for part in parts], size // len(parts)) for name in parts[0]["ids"]}


def _joined_ids(parts: Sequence[tf.RaggedTensor], rows: int) -> Ids:
    lengths = [np.diff(part.row_splits.numpy()) for part in parts]
    filled = [np.pad(length, (0, rows - len(length))) for length in lengths]
    values = np.concatenate([part.values.numpy() for part in parts])
    return Ids(values, np.concatenate([[0], np.cumsum(np.concatenate(filled))]))

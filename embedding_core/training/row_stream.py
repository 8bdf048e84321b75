"""Reads rows in an order that seed and step determine, and divides them among hosts, workers and replicas."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import tensorflow as tf

from embedding_core.columns import Spec, Values
from embedding_core.errors import ConfigError, DataError
from embedding_core.record_files import open_records, record_compression
from embedding_core.storage import is_remote
from embedding_core.tracing import as_written
from embedding_core.training.training_inputs import Batch, Inputs, Transform
from embedding_core.training_config import TrainingConfig

# Holds back a part of the train split for early stopping; the eval split is for the report.
#
# A hash of a row's bytes and of its place in its file, modulo 256, decides whether the row is held back, so that every
# host, every resume and every epoch agree. Without the place, equal rows would stay together: of a few tokens that come
# with both labels, training would see all rows of one label, and the validation part those of the other. Training sees
# the held-back rows only after early stopping has chosen a state.

Keep: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
_BUCKETS = 1 << 20


def split_filters(fraction: float) -> tuple[Keep, Keep]:
    """Make the filters of serialized rows, for training and for validation.

    Each takes the next rows of a file, string `[n]`, where n is 256 but for the last ones.

    Args:
      fraction: expected share of validation rows.
    """
    bound = round(fraction * _BUCKETS)

    def held_back(serialized: tf.Tensor) -> tf.Tensor:
        places = tf.strings.as_string(tf.range(tf.size(serialized)))
        return tf.strings.to_hash_bucket_fast(tf.strings.join([places, serialized]), _BUCKETS) < bound

    return lambda serialized: ~held_back(serialized), held_back


# Reads rows in an order that seed and step determine, so that a resumed run continues in the same order.

_ALTERNATING = 4  # files; determines the order of rows, so it must not depend on the machine
_FILTERED = 256  # records that are filtered in one call; determines which rows are held back


def require_files(files: Sequence[str], split: str) -> None:
    """Refuse a split without files.

    Raises:
      DataError: there are none.
    """
    if not files:
        raise DataError(f"the {split} split has no files: check the input and how it is split.")


def count_rows(files: Sequence[str], split: str, keep: Keep | None = None) -> int:
    """Count the records of TFRecord files that `keep` keeps.

    Raises:
      DataError: there are no files or no records, or a file is damaged.
    """
    require_files(files, split)
    return require_rows(_count(files, split, keep), files, split)


def rows_of_files(files: Sequence[str], split: str, keep: Keep | None = None) -> list[int]:
    """Count the records of each file; arguments and errors are those of `count_rows`."""
    require_files(files, split)
    rows = [_count([name], split, keep) for name in files]
    require_rows(sum(rows), files, split)
    return rows


def _records(files: list[str] | tf.Tensor, compression: str, keep: Keep | None) -> tf.data.Dataset:
    """Read the kept records of several files in turn; a filter does not change how the files alternate.

    One thread reads them all: passing each record from one thread to another takes three times as long as reading it.
    """
    read = as_written(lambda name: records_of(name, compression, keep))
    return tf.data.Dataset.from_tensor_slices(files).interleave(read, _ALTERNATING, 1)


def records_of(file: tf.Tensor, compression: str, keep: Keep | None) -> tf.data.Dataset:
    """Read the kept records of a file; filter in batches, as a call of `keep` takes longer than reading a record."""
    records = open_records(file, compression)
    if keep is None:
        return records
    filtered = as_written(lambda batch: tf.boolean_mask(batch, keep(batch)))
    return records.batch(_FILTERED).map(filtered).unbatch()


def batches_by_file(files: Sequence[str], batch_size: int, keep: Keep | None = None) -> tf.data.Dataset:
    """Read files one after the other, as a dataset of (number of the file, string [B]); batches do not span files."""
    compression = record_compression(files)

    @as_written
    def read(number: tf.Tensor, name: tf.Tensor) -> tf.data.Dataset:
        batches = records_of(name, compression, keep).batch(batch_size)
        return batches.map(as_written(lambda batch: (number, batch)))

    return tf.data.Dataset.from_tensor_slices(list(files)).enumerate().flat_map(read)


def _count(files: Sequence[str], split: str, keep: Keep | None) -> int:
    try:
        return int(rows_in(_records(list(files), record_compression(files), keep)))
    except tf.errors.OpError as error:
        named = repr(files[0]) if len(files) == 1 else f"{len(files)} files in {os.path.dirname(files[0])!r}"
        raise DataError(f"cannot read the {split} split, {named}: {error.message}") from error


def rows_in(records: tf.data.Dataset) -> tf.Tensor:
    """Count the records of a dataset, int64 scalar."""
    add = as_written(lambda count, rows: count + tf.size(rows, tf.int64))
    return records.batch(1024).reduce(tf.constant(0, tf.int64), add)


def require_rows(rows: int, files: Sequence[str], split: str) -> int:
    """Return the number of rows of a split.

    Raises:
      DataError: it is 0.
    """
    if not rows:
        raise DataError(
            f"the {split} split is empty ({len(files)} files): check the input, the split, and the rows that early "
            "stopping holds back."
        )
    return rows


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Count the batches of one pass over `rows`; the last one may be smaller."""
    return -(-rows // batch_size)


def shuffled_batches(
    files: Sequence[str],
    config: TrainingConfig,
    *,
    rows: int,
    start: int,
    batch_size: int,
    steps: int,
    keep: Keep | None,
) -> tf.data.Dataset:
    """Make endless batches of serialized examples, in a different order in each epoch.

    Args:
      files: TFRecord files.
      config: settings with shuffle buffer and seed.
      rows: number of kept rows in the files.
      start: step of the first batch; previous batches of its epoch are read but not parsed, previous epochs not read.
      batch_size: number of rows of a batch.
      steps: minimum number of batches per epoch; empty batches are appended to reach it.
      keep: filter of serialized rows; None for all.

    Returns:
      A dataset of (step, string [B]).
    """
    compression = record_compression(files)
    names = tf.constant(sorted(files))
    filled = steps_per_epoch(rows, batch_size)

    @as_written
    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        tf.random.set_seed(None)  # in this graph only: if the global seed is 0, `shuffle` rejects a tensor as its seed
        seed = tf.stack([tf.constant(config.seed, tf.int64), number])
        order = tf.random.experimental.stateless_shuffle(names, seed=seed)
        records = _records(order, compression, keep)
        draw = tf.random.stateless_uniform([], seed, minval=None, maxval=None, dtype=tf.int64)
        shuffled = records.shuffle(max(1, min(rows, config.shuffle_buffer)), seed=draw, reshuffle_each_iteration=False)
        return _followed_by_empty(shuffled.batch(batch_size), steps - filled)

    first, skipped = divmod(start, max(filled, steps))
    epochs = tf.data.Dataset.range(first, tf.int64.max)
    return epochs.flat_map(epoch).skip(skipped).enumerate(start)


def _followed_by_empty(batches: tf.data.Dataset, missing: int) -> tf.data.Dataset:
    if missing <= 0:
        return batches
    return batches.concatenate(tf.data.Dataset.from_tensors(tf.zeros([0], tf.string)).repeat(missing))


def batches_once(
    files: Sequence[str], batch_size: int, *, steps: int = 0, rows: int = 0, keep: Keep | None = None
) -> tf.data.Dataset:
    """Read the files once in order, as a dataset of (number of the batch, string [B]).

    Args:
      files: TFRecord files.
      batch_size: number of rows of a batch.
      steps: minimum number of batches; empty batches are appended to reach it.
      rows: number of rows in the files, if `steps` is given.
      keep: filter of serialized rows; None for all.
    """
    records = _records(sorted(files), record_compression(files), keep)
    return _followed_by_empty(records.batch(batch_size), steps - steps_per_epoch(rows, batch_size)).enumerate()


class Passes:
    """Passes over a dataset, one per iteration, that share one iterator: creating an iterator takes half a second."""

    def __init__(self, dataset: tf.data.Dataset, size: int) -> None:
        """Take a dataset of `size` elements."""
        self.dataset = dataset
        self._endless = dataset.repeat()
        self._size = size
        self._elements: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        elements, self._elements = self._elements or iter(self._endless), None  # an unfinished pass is not continued
        for _ in range(self._size):
            yield next(elements)
        self._elements = elements


# Cuts global batches into the batches of replicas, all of one static size.
#
# The result of a step does not depend on the number of replicas: every replica gets its rows of the same global batch,
# in order. A short batch is padded with rows without ids and of weight 0.


def padded(batch: Batch, size: int) -> Batch:
    """Pad a batch with empty rows.

    Args:
      batch: batch of at most `size` rows.
      size: number of rows of the result, in its static shapes.
    """
    missing = size - tf.shape(batch["label"])[0]

    def dense(values: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.pad(values, [[0, missing], [0, 0]]), [size, values.shape[1]])

    def ragged(ids: tf.RaggedTensor) -> tf.RaggedTensor:
        splits = tf.concat([ids.row_splits, tf.repeat(ids.row_splits[-1:], missing)], 0)
        return _ragged(ids.values, splits, size)

    made = Batch(
        ids={name: ragged(ids) for name, ids in batch["ids"].items()},
        dense={name: dense(values) for name, values in batch["dense"].items()},
        label=dense(batch["label"]),
        weight=dense(batch["weight"]),
        rows=batch["rows"],
    )
    if "share" in batch:
        made["share"] = batch["share"]
    if "softmax" in batch:
        made["softmax"] = {name: dense(values) for name, values in batch["softmax"].items()}
    if "lengths" in batch:
        made["lengths"] = {name: dense(values) for name, values in batch["lengths"].items()}
    return made


def _ragged(values: tf.Tensor, splits: tf.Tensor, rows: int) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(values, tf.ensure_shape(splits, [rows + 1]), validate=False)


def _part(batch: Batch, number: tf.Tensor, size: int) -> Batch:
    """Cut out the rows from number * size to (number + 1) * size."""
    start = number * size

    def cut(value: Any) -> Any:
        if isinstance(value, tf.RaggedTensor):
            splits = value.row_splits[start : start + size + 1]
            return _ragged(value.values[splits[0] : splits[-1]], splits - splits[0], size)
        return value if value.shape.rank == 0 else tf.ensure_shape(value[start : start + size], [size, value.shape[1]])

    return cast(Batch, tf.nest.map_structure(cut, batch))


def replica_batches(
    batches: tf.data.Dataset, size: int, context: tf.distribute.InputContext, *, own_rows: bool = False
) -> tf.data.Dataset:
    """Cut batches into the batches of one host's replicas, in the order of the replicas.

    Args:
      batches: global batches of at most `size` rows; or, with `own_rows`, this host's part of them.
      size: number of rows of a whole global batch; a multiple of the number of replicas.
      context: index of the host, and the numbers of hosts and replicas.
      own_rows: whether the batches hold rows of this host alone.
    """
    replicas = context.num_replicas_in_sync
    on_host = replicas // context.num_input_pipelines
    first = 0 if own_rows else context.input_pipeline_id * on_host

    @as_written
    def parts(batch: Batch) -> tf.data.Dataset:
        whole = padded(batch, size // context.num_input_pipelines if own_rows else size)
        numbers = tf.data.Dataset.range(first, first + on_host, output_type=tf.int32)
        return numbers.map(as_written(lambda number: _part(whole, number, size // replicas)))

    return batches.flat_map(parts).prefetch(2 * on_host)


# Assigns files to the hosts of a slice, so that each host reads different files.
#
# On a TPU of several hosts one process drives all of them, and each host reads its own input. Host h of n gets the
# files h, h + n, h + 2n, ... in the order of their names, and gives 1/n of every global batch. Hosts may have different
# numbers of rows: an epoch lasts until the last host has read its rows, and the others then give empty rows of weight
# 0. So each row is seen once per epoch, and the mean of a batch is over its real rows.

_log = logging.getLogger(__name__)
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


class HostRows(NamedTuple):
    """The files of one host.

    Attributes:
      files: sorted paths.
      rows: number of rows in these files.
    """

    files: tuple[str, ...]
    rows: int


def files_by_host(files: Sequence[str], rows: Sequence[int], hosts: int, split: str, *, must: bool) -> list[HostRows]:
    """Assign files to hosts.

    Args:
      files: TFRecord files.
      rows: number of rows of each file.
      hosts: number of hosts.
      split: name of the split, for messages.
      must: whether fewer files than hosts are an error; else all hosts read all files.

    Returns:
      The files of each host; empty if every host has to read all of them.

    Raises:
      DataError: there are fewer files than hosts, and `must` is true.
    """
    if len(files) < hosts:
        few = f"the {split} split has {len(files)} files for {hosts} hosts"
        if must:
            raise DataError(
                f"{few}, but `shard_files` is true: every host reads different files; write at least {hosts} files, "
                "or leave `shard_files` out."
            )
        _log.warning("%s: every host reads all of them; %d files or more are read faster", few, hosts)
        return []
    sized = sorted(zip(files, rows, strict=True))
    parts = [sized[host::hosts] for host in range(hosts)]
    return [HostRows(tuple(name for name, _ in part), sum(count for _, count in part)) for part in parts]


def check_batch(batch_size: int, hosts: int) -> None:
    """Check that all hosts can give equal parts of a global batch.

    Raises:
      ConfigError: `batch_size` is not a multiple of `hosts`.
    """
    rest = batch_size % hosts
    if rest:
        raise ConfigError(
            f"`batch_size` is {batch_size}: each of {hosts} hosts reads an equal part of it; write "
            f"{batch_size - rest or hosts} or {batch_size - rest + hosts}."
        )


def refuse_local_paths(files: Sequence[str]) -> None:
    """Refuse local paths, which name a different file on every host.

    Raises:
      ConfigError: a path is not an address of an object store.
    """
    local = [name for name in files if not is_remote(name)]
    if local:
        raise ConfigError(
            f"{local[0]!r} is a path of this machine, but the TPU has several hosts, each of which opens the file "
            "itself: put the data, the vocabularies and the pipeline's root at an address such as gs://bucket/folder."
        )


def bound_to_one_process(transform: Transform, spec: Mapping[str, Spec]) -> Iterator[str]:
    """Yield, in words, what in a transform works only in the coordinator's process.

    The functions of a dataset run on the hosts, which have neither the coordinator's Python code nor its lookup tables
    and variables.

    Args:
      transform: as `Inputs.transform`.
      spec: specification of its columns, as `Inputs.raw_spec`.
    """

    def parse(serialized: tf.Tensor) -> Mapping[str, Values]:
        return transform(tf.io.parse_example(serialized, dict(spec)))

    graph = tf.function(parse).get_concrete_function(tf.TensorSpec([None], tf.string)).graph
    kinds = {operation.type for operation in graph.get_operations()}
    kinds |= {node.op for function in graph.as_graph_def().library.function for node in function.node_def}
    if kinds & _PYTHON:
        yield "calls Python (tf.py_function or tf.numpy_function)"
    if any(captured.dtype in (tf.resource, tf.variant) for captured in graph.external_captures):
        yield "holds a lookup table or a variable"


def check_input_of_hosts(files: Sequence[str], inputs: Inputs) -> None:
    """Check that every host can read and transform its rows.

    Raises:
      ConfigError: a path or the transform is bound to one machine or process.
    """
    refuse_local_paths([*files, *inputs.vocabularies.values()])
    refuse_bound_transform(inputs, "every host of the TPU")


def refuse_bound_transform(inputs: Inputs, runs_on: str) -> None:
    """Refuse a transform that is bound to one process.

    Args:
      inputs: the inputs with the transform.
      runs_on: where the transform runs, for the message.

    Raises:
      ConfigError: the transform calls Python, or holds a lookup table or a variable.
    """
    if inputs.transform is None:
        return
    for bound in bound_to_one_process(inputs.transform, inputs.raw_spec):
        raise ConfigError(
            f"the transform of columns {sorted(inputs.raw_spec)} {bound}: it runs on {runs_on}, which does not have "
            "that; use the features' vocabularies for tokens, and TensorFlow's operations for the rest."
        )

"""Trains and evaluates on the workers of a cluster, which read their rows; its parameter servers hold the variables."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.errors import CheckpointError, DataError, TrainingError
from embedding_core.parameter_server.engine import tasks_of
from embedding_core.record_files import record_compression
from embedding_core.tracing import as_written, without_internals
from embedding_core.training.device_choice import Batches, Placement
from embedding_core.training.encoded_rows import RowsFolder
from embedding_core.training.job import Encoding, JobData, Sampler, TrainingJob, read_batches
from embedding_core.training.row_stream import (
    HostRows,
    Keep,
    records_of,
    refuse_bound_transform,
    require_files,
    require_rows,
    rows_in,
    steps_per_epoch,
)
from embedding_core.training.step import Scores, StepsDone, Trainable

# Divides the steps of a training into blocks of rows, which workers read and train on independently of each other.
#
# A block is a run of consecutive rows of one file. An epoch has each block once, in an order that seed and epoch
# determine, and the rows of a block are shuffled. So a step is a function of its number, whichever worker runs it.

STEPS_PER_BLOCK = 100  # at most; determines the order of rows, so it must not depend on the number of workers


class Piece(NamedTuple):
    """Consecutive steps on the rows of one block.

    Attributes:
      file: path of the file.
      first: number of the block's first row in it.
      rows: number of rows of the block.
      epoch: number of the epoch, from which the order of the rows follows; -1 for rows in order.
      skipped: batches of the block before this piece.
      step: number of the first step.
      steps: number of steps.
    """

    file: str
    first: int
    rows: int
    epoch: int
    skipped: int
    step: int
    steps: int

    def tensors(self) -> tuple[tf.Tensor, ...]:
        """Return the attributes as scalars, string and int64."""
        file, *numbers = self
        return tf.constant(file), *(tf.constant(number, tf.int64) for number in numbers)


class _Block(NamedTuple):
    file: str
    first: int
    rows: int
    steps: int


class BlockPlan:
    """The blocks of a split.

    Attributes:
      rows: number of rows.
      steps: number of steps of one pass.
    """

    def __init__(self, files: Sequence[str], rows: Sequence[int], batch_size: int, *, seed: int, buffer: int) -> None:
        """Cut files into blocks.

        Args:
          files: paths.
          rows: number of rows of each.
          batch_size: rows of a step; the last step of a file may have fewer.
          seed: seed of the order of the blocks.
          buffer: number of rows that are shuffled together, at most.
        """
        longest = max(1, min(STEPS_PER_BLOCK, buffer // batch_size)) * batch_size
        self._blocks = [
            _Block(file, first, min(longest, count - first), steps_per_epoch(min(longest, count - first), batch_size))
            for file, count in sorted(zip(files, rows, strict=True))
            for first in range(0, count, longest)
        ]
        self._seed = seed
        self.rows = sum(rows)
        self.steps = sum(block.steps for block in self._blocks)
        self._order = functools.lru_cache(maxsize=2)(self._new_order)

    def _new_order(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the order of the blocks in an epoch, and the number of the step after each of them."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._blocks))
        return order, np.cumsum([self._blocks[at].steps for at in order])

    def shuffled(self, start: int, steps: int, longest: int) -> Iterator[Piece]:
        """Yield the pieces of the steps from `start` on, in their order, each of at most `longest` steps."""
        end = start + steps
        while start < end:
            epoch, within = divmod(start, self.steps)
            order, ends = self._order(epoch)
            at = int(np.searchsorted(ends, within, side="right"))
            block = self._blocks[order[at]]
            skipped = within - (int(ends[at]) - block.steps)
            count = min(longest, block.steps - skipped, end - start)
            yield Piece(block.file, block.first, block.rows, epoch, skipped, start, count)
            start += count

    def in_order(self) -> Iterator[Piece]:
        """Yield the pieces of one pass over the rows in their order, one for each block."""
        step = 0
        for block in self._blocks:
            yield Piece(block.file, block.first, block.rows, -1, 0, step, block.steps)
            step += block.steps


def piece_batches(
    piece: Sequence[tf.Tensor], compression: str, keep: Keep | None, *, batch_size: int, seed: int
) -> tf.data.Dataset:
    """Read the batches of a piece, in a graph that a worker runs.

    Args:
      piece: `Piece.tensors()`.
      compression: of the files.
      keep: filter of serialized rows; None for all.
      batch_size: rows of a batch.
      seed: seed of the order of the rows.

    Returns:
      A dataset of (step, string [B]).
    """
    file, first, rows, epoch, skipped, step, steps = piece
    records = records_of(file, compression, keep).skip(first).take(rows)
    tf.random.set_seed(None)  # in this graph only: if the global seed is 0, `shuffle` rejects a tensor as its seed
    seeds = tf.stack([tf.constant(seed, tf.int64), epoch * 2**32 + first])
    draw = tf.random.stateless_uniform([], seeds, minval=None, maxval=None, dtype=tf.int64)
    buffer = tf.where(epoch < 0, tf.constant(1, tf.int64), rows)  # a buffer of one row keeps the order
    shuffled = records.shuffle(buffer, seed=draw, reshuffle_each_iteration=False)
    numbers = as_written(lambda number, batch: (number + step, batch))
    return shuffled.batch(batch_size).skip(skipped).take(steps).enumerate().map(numbers)


# Trains and evaluates on workers.

Reading: TypeAlias = Callable[[Sequence[tf.Tensor]], tf.data.Dataset]
_PIECES_PER_WORKER = 4  # of one call: more share the work better, fewer open fewer files
_SHORTEST_PIECE = 8  # steps
_SERVER = re.compile(r"/job:ps/replica:0/task:(\d+)")


def coordinator() -> Any:
    """Return the coordinator of the strategy in force; there is one for each strategy."""
    return tf.distribute.coordinator.ClusterCoordinator(tf.distribute.get_strategy())


class TrainedBlocks(Iterator[Piece]):
    """Endless steps to train on, from a step on: an iterator over single steps, of which `take` takes many at once.

    Attributes:
      reading: makes the batches of a piece, in the graph of a worker.
    """

    def __init__(self, plan: BlockPlan, reading: Reading, start: int) -> None:
        """Begin at step `start`."""
        self._plan, self.reading, self._next = plan, reading, start

    def __next__(self) -> Piece:
        """Return the next step."""
        return self.take(1, 1)[0]

    def take(self, steps: int, pieces: int) -> list[Piece]:
        """Return the next steps, in about that many pieces."""
        start, self._next = self._next, self._next + steps
        return list(self._plan.shuffled(start, steps, max(_SHORTEST_PIECE, -(-steps // pieces))))


class EvaluatedPiece(NamedTuple):
    """Rows to evaluate, and the function that makes their batches."""

    piece: Piece
    reading: Reading


class EvaluatedBlocks:
    """Passes over a split, as pieces."""

    def __init__(self, plan: BlockPlan, reading: Reading) -> None:
        """Take the blocks of a split."""
        self._plan, self._reading = plan, reading

    def __iter__(self) -> Iterator[EvaluatedPiece]:
        for piece in self._plan.in_order():
            yield EvaluatedPiece(piece, self._reading)


class ServedTrainable(Trainable):
    """Trains on workers, several steps at the same time: a step may see rows that others have changed meanwhile.

    A piece whose worker is lost is trained by another one from its beginning, so some of its steps may be repeated.
    """

    seconds_per_call = 10.0  # at the end of a call, workers wait for the last one

    @functools.cached_property
    def _traced(self) -> dict[tuple[Reading, str], Any]:
        return {}

    @functools.cached_property
    def parallel(self) -> int:  # type: ignore[override]
        """Number of workers."""
        return tasks_of("worker")

    def run(self, batches: TrainedBlocks, steps: tf.Tensor, dense: tf.Tensor) -> StepsDone:
        """Train on the next steps, on all workers; arguments and result are those of `Trainable.run`."""
        before, workers, count = int(self.step.numpy()), coordinator(), int(steps)
        train = self._on_worker(batches.reading, self._train_piece)
        pieces = batches.take(count, _PIECES_PER_WORKER * self.parallel)
        futures = [workers.schedule(train, args=(piece.tensors(), dense)) for piece in pieces]
        workers.join()
        done = [StepsDone(*future.fetch()) for future in futures]
        self.step.assign(before + count)  # exact, even if a piece was repeated
        return StepsDone(
            tf.constant(np.concatenate([step.losses for step in done])),
            tf.constant(sum(step.rows for step in done)),
            tf.constant(sum(step.positives for step in done)),
            tf.constant(np.all([step.finite for step in done], axis=0)),
        )

    def scores(self, batches: Iterable[EvaluatedPiece]) -> list[Scores]:  # type: ignore[override]
        """Return the outputs of all pieces, in their order."""
        workers = coordinator()
        futures = [
            workers.schedule(self._on_worker(reading, self._predict_piece), args=(piece.tensors(),))
            for piece, reading in batches
        ]
        workers.join()
        return [Scores(*future.fetch()) for future in futures]

    def _on_worker(self, reading: Reading, run: Callable[..., Any]) -> Any:
        """Return the function of a piece, traced once for each source of batches."""
        key = reading, run.__name__
        if key not in self._traced:
            self._traced[key] = tf.function(
                as_written(lambda piece, *rest: run(_iterator(reading(piece)), piece[-1], *rest))
            )
        return self._traced[key]

    def _train_piece(self, batches: Iterator[Any], steps: tf.Tensor, dense: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(super().run(batches, tf.cast(steps, tf.int32), dense))

    def _predict_piece(self, batches: Iterator[Any], steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
        parts = Scores(*(tf.TensorArray(tf.float32, tf.cast(steps, tf.int32), infer_shape=False) for _ in range(4)))

        def body(number: tf.Tensor, parts: Scores) -> tuple[tf.Tensor, Scores]:
            scores = self.predict(next(batches))
            written = (part.write(number, score) for part, score in zip(parts, scores, strict=True))
            return number + 1, Scores(*written)

        end = tf.cast(steps, tf.int32)
        _, parts = tf.while_loop(lambda number, _: number < end, body, (tf.constant(0), parts), parallel_iterations=1)
        return tuple(part.concat() for part in parts)


def _iterator(batches: tf.data.Dataset) -> Iterator[Any]:
    """Return an iterator that is cheap to make: a worker makes one for each piece."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return iter(batches.with_options(options))


@contextlib.contextmanager
def lost_servers(folder: str | None) -> Iterator[None]:
    """Turn TensorFlow's error about a lost parameter server into a TrainingError of one line."""
    lost = (tf.errors.UnavailableError, tf.errors.AbortedError)
    try:
        yield
    except (*lost, CheckpointError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, lost):  # it may have been lost while a checkpoint was written
            cause = cause.__cause__
        if cause is None:
            raise
        named = _SERVER.search(str(cause))
        raise TrainingError(
            f"parameter server {named[1] if named else '(unknown which)'}, or the connection to it, was lost, and with "
            "it the rows that it held. Start it again, and then the same run, which continues from the last checkpoint "
            f"in {folder!r}."
        ) from error


# The batches of a job whose workers read the rows themselves, each block of rows by the worker that trains on it.


class ServerData(JobData):
    """The batches of a job as blocks of rows, see `BlockPlan`; the attributes are those of `JobData`.

    A step has rows of one file, so the last step of each file may be short.
    """

    def __init__(
        self,
        job: TrainingJob,
        placement: Placement,
        folder: RowsFolder | None = None,
        encoding: Encoding = lambda split, rows, done: None,
    ) -> None:
        """Let the workers count the rows; arguments and errors are those of `JobData`, and rows are not encoded."""
        refuse_bound_transform(job.inputs, "every worker")
        self._plans: dict[str, BlockPlan] = {}
        super().__init__(job, placement, None, encoding)

    def _plan(self, split: str) -> BlockPlan:
        if split not in self._plans:
            files, training = self._files[split], self._job.training
            self._plans[split] = BlockPlan(
                files,
                _count(files, split, self._keep.get(split)),
                training.batch_size,
                seed=training.seed,
                buffer=training.shuffle_buffer,
            )
        return self._plans[split]

    def _files_by_host(self, split: str) -> list[HostRows]:
        return [HostRows(tuple(self._files[split]), self._plan(split).rows)]

    def _steps(self, split: str) -> int:
        return self._plan(split).steps

    def _shuffled(self, split: str, start: int, before: int) -> Batches:
        whole = min(self._job.training.batch_size, self.rows)
        return TrainedBlocks(self._plan(split), self._reading(split, self._sampler, before, whole), start)

    def _once(self, split: str) -> Iterable[Any]:
        return EvaluatedBlocks(self._plan(split), self._reading(split, self._sampler_once(split), 0, None))

    def _reading(
        self, split: str, sampler: Sampler | None, before: int, whole: float | None
    ) -> Callable[[Sequence[tf.Tensor]], tf.data.Dataset]:
        """Return the function that makes the batches of a piece, in the graph of a worker."""
        training, keep, parser = self._job.training, self._keep.get(split), self._parser()
        compression = record_compression(self._files[split])

        def batches(piece: Sequence[tf.Tensor]) -> tf.data.Dataset:
            records = piece_batches(piece, compression, keep, batch_size=training.batch_size, seed=training.seed)
            numbered = records.map(lambda step, rows: (before + step, rows))
            return read_batches(numbered, parser, sampler, self._job.inputs.config, whole)

        return batches


def _reason(error: tf.errors.OpError) -> str:
    """Return the line of a worker's error that names the file; the others are about the graph."""
    lines = [line.strip() for line in error.message.splitlines() if "; " in line]
    return without_internals(lines[0] if lines else error.message)


def _count(files: Sequence[str], split: str, keep: Callable[[tf.Tensor], tf.Tensor] | None) -> list[int]:
    """Let the workers count the kept rows of each file.

    Raises:
      DataError: there are no files or no rows, a file is damaged, or a worker cannot open it.
    """
    require_files(files, split)
    compression = record_compression(files)

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)  # type: ignore[untyped-decorator]
    def count(file: tf.Tensor) -> tf.Tensor:
        return rows_in(records_of(file, compression, keep))

    workers = coordinator()
    try:
        counts = [workers.schedule(count, args=(tf.constant(name),)) for name in files]
        workers.join()
        rows = [int(count.fetch()) for count in counts]
    except (tf.errors.NotFoundError, tf.errors.DataLossError, tf.errors.PermissionDeniedError) as error:
        raise DataError(
            f"a worker cannot read the {split} split ({_reason(error)}): all tasks of the cluster "
            "need the data, the vocabularies and the work_dir at the same paths or addresses."
        ) from error
    require_rows(sum(rows), files, split)
    return rows

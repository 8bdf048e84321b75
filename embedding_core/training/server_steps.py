"""Trains and evaluates on the workers of a cluster, whose parameter servers hold the tables and the dense part."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from embedding_core.errors import CheckpointError, TrainingError
from embedding_core.layer.server_tables import tasks_of
from embedding_core.tracing import as_written
from embedding_core.training.step import Scores, StepsDone, Trainable
from embedding_core.training.step_blocks import BlockPlan, Piece

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
        done = [StepsDone(*one.fetch()) for one in futures]
        self.step.assign(before + count)  # exact, even if a piece was repeated
        return StepsDone(
            tf.constant(np.concatenate([one.losses for one in done])),
            tf.constant(sum(one.rows for one in done)),
            tf.constant(sum(one.positives for one in done)),
            tf.constant(np.all([one.finite for one in done], axis=0)),
        )

    def scores(self, batches: Iterable[EvaluatedPiece]) -> list[Scores]:  # type: ignore[override]
        """Return the outputs of all pieces, in their order."""
        workers = coordinator()
        futures = [
            workers.schedule(self._on_worker(reading, self._predict_piece), args=(piece.tensors(),))
            for piece, reading in batches
        ]
        workers.join()
        return [Scores(*one.fetch()) for one in futures]

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
def lost_servers(folder: str) -> Iterator[None]:
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

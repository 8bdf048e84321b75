"""Divides the steps of a training into blocks of rows, which workers read and train on independently of each other.

A block is a run of consecutive rows of one file. An epoch has each block once, in an order that seed and epoch
determine, and the rows of a block are shuffled. So a step is a function of its number, whichever worker runs it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.tracing import as_written
from embedding_core.training.row_stream import records_of, steps_per_epoch
from embedding_core.training.validation_split import Keep

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

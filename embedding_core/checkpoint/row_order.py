"""Puts the rows of a table into another order, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from embedding_core.checkpoint.bundle import Rows, rows_per_slice
from embedding_core.config import TableConfig
from embedding_core.errors import CheckpointError
from embedding_core.storage import scratch_folder

_SLICES_AT_ONCE = 16


def reordered(
    slices: Iterable[tuple[int, Rows]],
    sources: npt.NDArray[np.int64],
    dim: int,
    fill: Callable[[npt.NDArray[np.int64]], Rows],
    slice_bytes: int,
) -> Iterator[tuple[int, Rows]]:
    """Yield the rows in another order: ``new[i] = old[sources[i]]``, or a row of `fill` if the source is -1.

    Old slices are read once, in order. Their rows are appended to a file per new slice, and each file is then put in
    order in memory.

    Args:
      slices: (number of the first row, rows) of the old table, in order.
      sources: [new rows] the old row of each, or -1.
      dim: length of a row.
      fill: returns rows for the numbers of new rows that have no source.
      slice_bytes: bytes of a slice.
    """
    count = rows_per_slice((len(sources), dim), slice_bytes)
    targets_of = _Targets(sources)
    with scratch_folder("remap") as folder:
        for first, rows in slices:
            targets = targets_of.slice(first, len(rows))
            cuts = np.flatnonzero(np.diff(targets // count)) + 1
            for part in np.split(targets, cuts):
                if len(part):
                    _append(folder, int(part[0]) // count, part, rows[sources[part] - first])
        for bucket, start in enumerate(range(0, len(sources), count)):
            path = os.path.join(folder, str(bucket))
            yield start, _assembled(path, start, sources[start : start + count], dim, fill)


def aligned(
    slices: Iterable[tuple[int, Rows]], sources: npt.NDArray[np.int64], table: TableConfig, slice_bytes: int
) -> Iterable[tuple[int, Rows]]:
    """Return the slices of an earlier table in the order of a later one's rows; new rows are zeros.

    Args:
      slices: (number of the first row, rows) of the earlier table, in order.
      sources: [later rows] the earlier row of each, or -1.
      table: the earlier table.
      slice_bytes: bytes of a slice, of both tables.
    """
    if np.array_equal(sources, np.arange(table.vocabulary_size)):
        return slices
    zeros = lambda rows: np.zeros((len(rows), table.dim), np.float32)  # noqa: E731
    return reordered(slices, sources, table.dim, zeros, slice_bytes)


class _Targets:
    """Finds the new rows that come from a slice of old ones.

    It searches for a few slices at a time, because sorting all sources would take memory.
    """

    def __init__(self, sources: npt.NDArray[np.int64]) -> None:
        self._sources = sources
        self._end = 0
        self._some = np.zeros(0, np.int64)  # the new rows that come from the old ones before `_end`

    def slice(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return the new rows, ascending, whose sources are `first` to `first + count - 1`; call it in order."""
        if first + count > self._end:
            self._end = first + _SLICES_AT_ONCE * count
            self._some = np.flatnonzero((self._sources >= first) & (self._sources < self._end))
        chosen = self._sources[self._some]
        return self._some[(chosen >= first) & (chosen < first + count)]


def _append(folder: str, bucket: int, targets: npt.NDArray[np.int64], rows: Rows) -> None:
    for suffix, array in (("targets", targets), ("rows", rows)):
        with open(os.path.join(folder, f"{bucket}.{suffix}"), "ab") as file:
            file.write(np.ascontiguousarray(array).data)


def _assembled(
    path: str,
    start: int,
    sources: npt.NDArray[np.int64],
    dim: int,
    fill: Callable[[npt.NDArray[np.int64]], Rows],
) -> Rows:
    result = np.empty((len(sources), dim), np.float32)
    new = np.flatnonzero(sources < 0)
    if len(new):
        result[new] = fill(new + start)
    if len(new) < len(sources):
        targets = np.fromfile(f"{path}.targets", np.int64)
        if len(targets) != len(sources) - len(new):
            raise CheckpointError(
                f"{len(sources) - len(new)} earlier rows were expected, the checkpoint gave {len(targets)}: its tables "
                "are smaller than its manifest says; take another checkpoint."
            )
        result[targets - start] = np.fromfile(f"{path}.rows", np.float32).reshape(-1, dim)
        for suffix in ("targets", "rows"):
            os.remove(f"{path}.{suffix}")
    return result

"""Plants sicknesses into trained embedding checkpoints, for the trial and the tests of the health gate."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from embedding_core.checkpoint import read_manifest, table_shapes, write_tables
from embedding_core.checkpoint.remap import token_rows
from embedding_core.checkpoint.row_sources import row_sources
from embedding_core.checkpoint.table_health import CheckpointTables

Arrays = dict[str, npt.NDArray[np.float32]]
"""Rows by `<table>`, and slots by `<table>/<slot>`."""
_FEW = 0.05


class Patient(NamedTuple):
    """A checkpoint in which a table gets sick.

    Attributes:
      now: the checkpoint.
      arrays: its rows and slots; a plant changes them.
      table: name of the table.
      other: name of a table of the same dim, for the sickness that swaps two.
      earlier: rows and slots of the base, in the order of this checkpoint's rows; zeros for new tokens.
      known: [rows] whether the base has the row's token.
      oldest: rows and slots of an older checkpoint in the same order, and whether it has the token.
      chance: random numbers.
    """

    now: CheckpointTables
    arrays: Arrays
    table: str
    other: str
    earlier: Arrays
    known: npt.NDArray[np.bool_]
    oldest: tuple[Arrays, npt.NDArray[np.bool_]]
    chance: np.random.Generator

    @property
    def rows(self) -> npt.NDArray[np.float32]:
        """The rows of the table."""
        return self.arrays[self.table]

    @property
    def keys(self) -> list[str]:
        """The keys of the table and its slots."""
        return [key for key in self.arrays if key.partition("/")[0] == self.table]

    def some(self, share: float) -> npt.NDArray[np.int64]:
        """Draw a share of the rows, at least 2."""
        count = max(2, round(share * len(self.rows)))
        return self.chance.permutation(len(self.rows))[:count]


def collapsed(patient: Patient) -> None:
    """Draw all rows together, to 1% of their distance from their mean."""
    mean = patient.rows.mean(axis=0)
    patient.rows[:] = mean + 0.01 * (patient.rows - mean)


def frozen(patient: Patient) -> None:
    """Undo the training of half of the rows."""
    half = patient.some(0.5)
    half = half[patient.known[half]]
    for key in patient.keys:
        patient.arrays[key][half] = patient.earlier[key][half]


def shifted(patient: Patient) -> None:
    """Give each token the row of the token before it."""
    for key in patient.keys:
        patient.arrays[key][:] = np.roll(patient.arrays[key], 1, axis=0)


def swapped(patient: Patient) -> None:
    """Exchange the rows of two tables, as far as both have some."""
    count = min(len(patient.rows), len(patient.arrays[patient.other]))
    one, two = patient.arrays[patient.table], patient.arrays[patient.other]
    one[:count], two[:count] = two[:count].copy(), one[:count].copy()


def exploded(patient: Patient) -> None:
    """Make some rows a hundred times as long."""
    patient.rows[patient.some(_FEW)] *= 100


def zeroed(patient: Patient) -> None:
    """Set some rows to zero."""
    patient.rows[patient.some(_FEW)] = 0


def constant_columns(patient: Patient) -> None:
    """Set two columns to their means."""
    patient.rows[:, -2:] = patient.rows[:, -2:].mean(axis=0)


def duplicated(patient: Patient) -> None:
    """Copy one row to some others."""
    some = patient.some(_FEW)
    patient.rows[some] = patient.rows[some[0]]


def half_restored(patient: Patient) -> None:
    """Start the second half of the rows, and their slots, again."""
    table = patient.now.tables[patient.table]
    half = len(patient.rows) // 2
    names = [b"row %d" % row for row in range(half, len(patient.rows))]
    patient.rows[half:] = token_rows(table, names, seed=1)
    for slot in table.optimizer.slots if table.optimizer else ():
        patient.arrays[f"{patient.table}/{slot.name}"][half:] = slot.initial


def another_day(patient: Patient) -> None:
    """Take rows and slots from an older checkpoint, by token."""
    arrays, known = patient.oldest
    for key in patient.keys:
        patient.arrays[key][known] = arrays[key][known]


def flipped(patient: Patient) -> None:
    """Change the sign of all rows."""
    patient.rows[:] *= -1


def noisy(patient: Patient) -> None:
    """Add noise of 10% of its norm to each row."""
    noise = patient.chance.normal(size=patient.rows.shape)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    patient.rows[:] += 0.1 * np.linalg.norm(patient.rows, axis=1, keepdims=True) * noise


SICKNESSES: Mapping[str, Callable[[Patient], None]] = {
    plant.__name__.replace("_", " "): plant
    for plant in (
        collapsed,
        frozen,
        shifted,
        swapped,
        exploded,
        zeroed,
        constant_columns,
        duplicated,
        half_restored,
        another_day,
        flipped,
        noisy,
    )
}


def read_arrays(checkpoint: CheckpointTables) -> Arrays:
    """Read all rows and slots of a checkpoint."""
    keys = table_shapes(read_manifest(checkpoint.folder).config)
    return {key: np.concatenate([rows for _, rows in checkpoint.reader.slices(key)]).copy() for key in keys}


def aligned_arrays(
    now: CheckpointTables, table: str, earlier: CheckpointTables
) -> tuple[Arrays, npt.NDArray[np.bool_]]:
    """Read a table and its slots in the order of a later checkpoint's rows; also return which rows it has."""
    sources = row_sources(now.tables[table], earlier.tables[table], now.vocabularies, earlier.vocabularies).rows
    known = sources >= 0
    arrays = {key: part for key, part in read_arrays(earlier).items() if key.partition("/")[0] == table}
    return {key: np.where(known[:, None], part[sources], np.float32(0)) for key, part in arrays.items()}, known


def planted(sickness: str, table: str, line: tuple[Path, Path, Path], destination: Path, seed: int = 0) -> set[str]:
    """Write a checkpoint with a sick table.

    Args:
      sickness: key of `SICKNESSES`.
      table: name of the table.
      line: an older checkpoint, the base, and the checkpoint itself.
      destination: folder to write.
      seed: seed of the choice of rows.

    Returns:
      The names of the tables that are sick now.
    """
    oldest, base, now = map(CheckpointTables, line)
    config = read_manifest(now.folder).config
    same = [one.name for one in config.tables if one.dim == now.tables[table].dim and one.name != table]
    other = max(same, key=lambda name: now.tables[name].vocabulary_size)
    earlier, known = aligned_arrays(now, table, base)
    arrays = read_arrays(now)
    SICKNESSES[sickness](
        Patient(
            now, arrays, table, other, earlier, known, aligned_arrays(now, table, oldest), np.random.default_rng(seed)
        )
    )
    write_tables(
        os.fspath(destination),
        config,
        lambda key: [(0, arrays[key])],
        step=read_manifest(now.folder).step,
        vocabularies=now.vocabularies,
    )
    return {table, other} if sickness == "swapped" else {table}

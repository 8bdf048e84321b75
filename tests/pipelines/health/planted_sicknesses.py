"""Plants sicknesses into trained embedding checkpoints, for the trial and the tests of the health gate."""

import os
from typing import Any, NamedTuple

import numpy as np

from embedding_core.checkpoint import read_manifest, table_shapes, write_tables
from embedding_core.checkpoint.remap import token_rows
from embedding_core.checkpoint.row_sources import row_sources
from embedding_core.checkpoint.table_health import CheckpointTables

_FEW = 0.05


class Patient(NamedTuple):
    """A checkpoint in which a table gets sick. Arrays are rows by `<table>`, and slots by `<table>/<slot>`.

    Attributes:
      now: the checkpoint.
      arrays: its arrays; a plant changes them.
      table: name of the table.
      other: name of a table of the same dim, for the sickness that swaps two.
      earlier: arrays of the base, in the order of this checkpoint's rows; zeros for new tokens.
      known: [rows] whether the base has the row's token.
      oldest: arrays of an older checkpoint in the same order, and whether it has the token.
      chance: random numbers.
    """

    now: CheckpointTables
    arrays: dict
    table: str
    other: str
    earlier: dict
    known: Any
    oldest: tuple
    chance: np.random.Generator

    @property
    def rows(self):
        return self.arrays[self.table]

    @property
    def keys(self):
        """The keys of the table and its slots."""
        return [key for key in self.arrays if key.partition("/")[0] == self.table]

    def some(self, share):
        """Draw a share of the rows, at least 2."""
        count = max(2, round(share * len(self.rows)))
        return self.chance.permutation(len(self.rows))[:count]


def collapsed(patient):
    """Draw all rows together, to 1% of their distance from their mean."""
    mean = patient.rows.mean(axis=0)
    patient.rows[:] = mean + 0.01 * (patient.rows - mean)


def frozen(patient):
    """Undo the training of half of the rows."""
    half = patient.some(0.5)
    half = half[patient.known[half]]
    for key in patient.keys:
        patient.arrays[key][half] = patient.earlier[key][half]


def shifted(patient):
    """Give each token the row of the token before it."""
    for key in patient.keys:
        patient.arrays[key][:] = np.roll(patient.arrays[key], 1, axis=0)


def swapped(patient):
    """Exchange the rows of two tables, as far as both have some."""
    count = min(len(patient.rows), len(patient.arrays[patient.other]))
    first, two = patient.arrays[patient.table], patient.arrays[patient.other]
    first[:count], two[:count] = two[:count].copy(), first[:count].copy()


def exploded(patient):
    """Make some rows a hundred times as long."""
    patient.rows[patient.some(_FEW)] *= 100


def zeroed(patient):
    """Set some rows to zero."""
    patient.rows[patient.some(_FEW)] = 0


def constant_columns(patient):
    """Set two columns to their means."""
    patient.rows[:, -2:] = patient.rows[:, -2:].mean(axis=0)


def duplicated(patient):
    """Copy one row to some others."""
    some = patient.some(_FEW)
    patient.rows[some] = patient.rows[some[0]]


def half_restored(patient):
    """Start the second half of the rows, and their slots, again."""
    table = patient.now.tables[patient.table]
    half = len(patient.rows) // 2
    names = [b"row %d" % row for row in range(half, len(patient.rows))]
    patient.rows[half:] = token_rows(table, names, seed=1)
    for slot in table.optimizer.slots if table.optimizer else ():
        patient.arrays[f"{patient.table}/{slot.name}"][half:] = slot.initial


def another_day(patient):
    """Take rows and slots from an older checkpoint, by token."""
    arrays, known = patient.oldest
    for key in patient.keys:
        patient.arrays[key][known] = arrays[key][known]


def flipped(patient):
    """Change the sign of all rows."""
    patient.rows[:] *= -1


def noisy(patient):
    """Add noise of 10% of its norm to each row."""
    noise = patient.chance.normal(size=patient.rows.shape)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    patient.rows[:] += 0.1 * np.linalg.norm(patient.rows, axis=1, keepdims=True) * noise


PLANTS = (
    collapsed, frozen, shifted, swapped, exploded, zeroed, constant_columns, duplicated, half_restored, another_day,
    flipped, noisy,
)  # fmt: skip
SICKNESSES = {plant.__name__.replace("_", " "): plant for plant in PLANTS}


def read_arrays(checkpoint):
    """Read all rows and slots of a checkpoint."""
    keys = table_shapes(read_manifest(checkpoint.folder).config)
    return {key: np.concatenate([rows for _, rows in checkpoint.reader.slices(key)]).copy() for key in keys}


def aligned_arrays(now, table, earlier):
    """Read a table and its slots in the order of a later checkpoint's rows; also return which rows it has."""
    sources = row_sources(now.tables[table], earlier.tables[table], now.vocabularies, earlier.vocabularies).rows
    known = sources >= 0
    arrays = {key: part for key, part in read_arrays(earlier).items() if key.partition("/")[0] == table}
    return {key: np.where(known[:, None], part[sources], np.float32(0)) for key, part in arrays.items()}, known


def planted(sickness, table, line, destination, seed=0):
    """Write a checkpoint with a sick table; return the names of the tables that are sick now.

    `line` is an older checkpoint, the base, and the checkpoint itself.
    """
    oldest, base, now = map(CheckpointTables, line)
    manifest = read_manifest(now.folder)
    tables = manifest.config.tables
    same = [
        candidate.name for candidate in tables if candidate.dim == now.tables[table].dim and candidate.name != table
    ]
    other = max(same, key=lambda name: now.tables[name].vocabulary_size)
    arrays, chance = read_arrays(now), np.random.default_rng(seed)
    earlier = aligned_arrays(now, table, base)
    SICKNESSES[sickness](Patient(now, arrays, table, other, *earlier, aligned_arrays(now, table, oldest), chance))
    write_tables(
        os.fspath(destination), manifest.config, lambda key: [(0, arrays[key])], step=manifest.step,
        vocabularies=now.vocabularies,
    )  # fmt: skip
    return {table, other} if sickness == "swapped" else {table}

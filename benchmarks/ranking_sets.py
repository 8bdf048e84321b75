"""Generates data sets with a planted signal, on which the defaults of the ranking model are chosen or judged.

The defaults were chosen on the sets of `DEVELOPMENT`, and are only judged on those of `HELD_OUT`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.criteo_rows import NUMBERS, criteo_rows
from benchmarks.zipf_examples import zipf

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class RowSet:
    """Rows, and the columns that a model reads.

    Attributes:
      table: the rows, with the column "label".
      dense: names of the columns of numbers.
      log1p: whether the model reads log(1 + x) of the dense columns.
    """

    table: pa.Table
    dense: tuple[str, ...]
    log1p: bool

    @property
    def categorical(self) -> tuple[str, ...]:
        """The columns of tokens."""
        return tuple(name for name in self.table.column_names if name not in (*self.dense, "label"))


def _labels(generator: np.random.Generator, logit: Floats) -> pa.Array:
    return pa.array((generator.random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(np.int64))


def _tokens(name: str, ids: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array([f"{name}{value}" for value in ids.tolist()])


def _advertising(rows: int, seed: int, *, deviation: float, pairs: int) -> RowSet:
    """Draw rows of Criteo's shape: 13 numbers, 26 skewed columns, main effects, and products of hidden vectors."""
    world, generator = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    sizes = np.round(10 ** world.uniform(0.5, 5.7, 26)).astype(np.int64)
    logit = np.full(rows, -1.3)
    columns: dict[str, pa.Array] = {}
    for index in range(13):
        values = np.floor(generator.lognormal(world.uniform(0, 4), world.uniform(0.6, 1.5), rows))
        missing = generator.random(rows) < (0.3 if index % 4 == 0 else 0.0)
        logs = np.log1p(values)
        logit += np.where(missing, 0.0, world.normal(0, 0.12) * (logs - logs.mean()))
        columns[f"I{index + 1}"] = pa.array(values, mask=missing)
    vectors = []
    for index, size in enumerate(sizes.tolist()):
        ids = zipf(generator, size, rows, world.uniform(0.9, 1.3))
        missing = generator.random(rows) < (0.1 if index % 5 == 2 else 0.0)
        effects = world.normal(0, deviation * world.choice([0.2, 1.0]), size)
        logit += np.where(missing, 0.0, effects[ids])
        vectors.append(np.where(missing[:, None], 0.0, world.normal(0, 1, (size, 3))[ids]))
        texts = _tokens(f"c{index}_", ids)
        columns[f"C{index + 1}"] = (
            texts
            if not missing.any()
            else texts.filter(pa.array(~missing)).take(pa.array(np.cumsum(~missing) - 1, mask=missing))
        )
    for _ in range(pairs):
        first, second = world.choice(26, 2, replace=False)
        logit += 0.25 * np.einsum("rd,rd->r", vectors[first], vectors[second])
    return RowSet(
        pa.table({"label": _labels(generator, logit), **columns}), tuple(f"I{i + 1}" for i in range(13)), True
    )


def _visits(rows: int, seed: int) -> RowSet:
    """Draw hospital visits: 8 counts, 14 long-tailed columns of codes, weak effects, and a drift over time."""
    world, generator = np.random.default_rng([seed, 3]), np.random.default_rng([seed, 4])
    time = np.arange(rows) / rows
    logit, columns = np.full(rows, -0.8), {}
    for index in range(8):
        values = generator.poisson(generator.gamma(1.0, world.uniform(1, 12), rows)).astype(np.float64)
        logs = np.log1p(values)
        logit += world.normal(0, 0.2) * (logs - logs.mean()) * (1 + (index == 0) * time)
        columns[f"count{index}"] = pa.array(values)
    codes = world.normal(0, 0.35, 900)
    for index, size in enumerate((900, 900, 900, 70, 18, 9, 8, 6, 10, 3, 3, 4, 4, 2)):
        ids = zipf(generator, size, rows, 1.0)
        if index < 3:
            ids = (ids + np.floor(time * 40).astype(np.int64) * (generator.random(rows) < 0.1)) % size
        effects = codes if index < 3 else world.normal(0, 0.25, size)
        logit += effects[ids] * (0.5 if index in (1, 2) else 1.0) * (1 - 0.5 * time * (index == 3))
        columns[f"code{index}"] = _tokens("d" if index < 3 else f"e{index}_", ids)
    return RowSet(pa.table({"label": _labels(generator, logit), **columns}), tuple(f"count{i}" for i in range(8)), True)


def _ratings(rows: int, seed: int) -> RowSet:
    """Draw users' likes of films: long tails, biases, hidden tastes, and columns that describe users and films."""
    world, generator = np.random.default_rng([seed, 5]), np.random.default_rng([seed, 6])
    users, items = 6000, 4000
    tastes, kinds = world.normal(0, 1, (users, 4)), world.normal(0, 1, (items, 4))
    user, item = zipf(generator, users, rows, 0.7), zipf(generator, items, rows, 0.9)
    logit = 0.3 + world.normal(0, 0.7, users)[user] + world.normal(0, 0.9, items)[item]
    logit += 0.35 * np.einsum("rd,rd->r", tastes[user], kinds[item])
    genre = np.argmax(kinds @ world.normal(0, 1, (4, 18)), 1)
    job = np.argmax(tastes @ world.normal(0, 1, (4, 21)), 1)
    age = np.floor(world.gamma(6, 6, users))
    columns = {
        "user": _tokens("u", user),
        "item": _tokens("i", item),
        "genre": _tokens("g", genre[item]),
        "job": _tokens("j", job[user]),
        "hour": _tokens("h", generator.integers(0, 24, rows)),
        "age": pa.array(age[user]),
    }
    return RowSet(pa.table({"label": _labels(generator, logit), **columns}), ("age",), False)


def _census(rows: int, seed: int) -> RowSet:
    """Draw people of a census: 8 columns of few tokens, 6 numbers with nonlinear effects, and 3 interactions."""
    world, generator = np.random.default_rng([seed, 7]), np.random.default_rng([seed, 8])
    logit, columns, drawn = np.full(rows, -1.2), {}, []
    for index in range(6):
        values = generator.gamma(world.uniform(1, 6), world.uniform(1, 20), rows)
        score = (values - values.mean()) / values.std()
        logit += world.normal(0, 0.5) * score + world.normal(0, 0.25) * (np.minimum(score, 3) ** 2 - 1)
        columns[f"number{index}"] = pa.array(np.round(values))
    for index, size in enumerate((9, 16, 7, 15, 6, 5, 2, 42)):
        ids = zipf(generator, size, rows, 1.0)
        logit += world.normal(0, 0.6, size)[ids]
        columns[f"group{index}"] = _tokens(f"k{index}_", ids)
        drawn.append((ids, size))
    for first, second in ((0, 1), (3, 6), (2, 4)):
        table = world.normal(0, 0.5, (drawn[first][1], drawn[second][1]))
        logit += table[drawn[first][0], drawn[second][0]]
    return RowSet(
        pa.table({"label": _labels(generator, logit), **columns}), tuple(f"number{i}" for i in range(6)), False
    )


def _criteo(rows: int, seed: int) -> RowSet:
    return RowSet(criteo_rows(rows, seed), tuple(NUMBERS), True)


def _made_up(number: str, seed: int) -> dict[str, Callable[[int], RowSet]]:
    """Return the generated sets by name. Another seed draws other columns, sizes of vocabularies and effects."""
    return {
        f"advertising{number}": lambda rows: _advertising(rows, seed, deviation=0.5, pairs=4),
        f"advertising{number}, main effects": lambda rows: _advertising(rows, seed + 1, deviation=0.4, pairs=0),
        f"ratings{number}": lambda rows: _ratings(rows, seed + 2),
        f"census{number}": lambda rows: _census(rows, seed + 3),
    }


DEVELOPMENT: dict[str, Callable[[int], RowSet]] = {
    "criteo_rows": lambda rows: _criteo(rows, 7),
    "visits": lambda rows: _visits(rows, 1),
    **_made_up("", 11),
}
HELD_OUT: dict[str, Callable[[int], RowSet]] = {**_made_up(" 2", 21), **_made_up(" 3", 31)}

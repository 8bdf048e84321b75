"""Generates rows like those of the Criteo data set: a label, 13 numbers, and 26 columns of tokens.

The tokens follow a bounded Zipf law. The label depends on some of the columns, so that a model can learn it.
"""

from __future__ import annotations

import pathlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from benchmarks.zipf_examples import zipf

NUMBERS = [f"I{index}" for index in range(1, 14)]
TEXTS = [f"C{index}" for index in range(1, 27)]
# Numbers of distinct values of Criteo's columns C1 to C26, capped at a million.
_CARDINALITIES = (1460, 583, 1_000_000, 1_000_000, 305, 24, 12517, 633, 3, 93145, 5683, 1_000_000, 3194)
_CARDINALITIES += (27, 14992, 1_000_000, 10, 5652, 2173, 4, 1_000_000, 18, 15, 286181, 105, 142572)
_MISSING = 0.05
_SIGNAL_OF = (0, 4, 8, 13, 16, 19, 21)
_CHUNK = 100_000


def _tokens(index: int, rows: int, generator: np.random.Generator) -> tuple[pa.Array, npt.NDArray[np.float64]]:
    """Draw a column of tokens, and what it adds to the logit of each row."""
    size = _CARDINALITIES[index]
    drawn = zipf(generator, size, rows)
    distinct, inverse = np.unique(drawn, return_inverse=True)
    texts = pa.array([f"{(value * 2654435761 + index * 40503) & 0xFFFFFFFF:08x}" for value in distinct.tolist()])
    missing = generator.random(rows) < (_MISSING if index % 3 == 2 else 0.0)
    signal = np.random.default_rng(index).normal(0, 0.6, size)[drawn] if index in _SIGNAL_OF else np.zeros(rows)
    return texts.take(pa.array(inverse, mask=missing)), np.where(missing, 0.0, signal)


def criteo_rows(rows: int, seed: int) -> pa.Table:
    """Generate rows; the same arguments give the same rows."""
    generator = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {}
    logit = np.full(rows, -1.2)
    for index, name in enumerate(NUMBERS):
        values = np.floor(generator.lognormal(1.0 + index % 4, 1.2, rows))
        missing = generator.random(rows) < (0.2 if index % 4 == 0 else 0.0)
        columns[name] = pa.array(values.astype(np.int64), mask=missing)
        logit += np.where(missing, 0.0, 0.15 * (np.log1p(values) - 1.0 - index % 4) * (index % 3 - 1))
    for index, name in enumerate(TEXTS):
        columns[name], signal = _tokens(index, rows, generator)
        logit += signal
    label = (generator.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    return pa.table({"label": pa.array(label), **columns})


def write_rows(path: pathlib.Path, rows: int, seed: int = 7) -> None:
    """Write a Parquet file of rows, unless the file exists."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    with parquet.ParquetWriter(unfinished, criteo_rows(1, seed).schema) as writer:
        for start in range(0, rows, _CHUNK):
            writer.write_table(criteo_rows(min(_CHUNK, rows - start), seed + start))
    unfinished.rename(path)

"""Compares the types of served rows: bytes, time to load, time of a lookup, and error.

    python -m benchmarks.served_rows <folder> [--batches 1 32 512] [--rounds 9] [--rows 1000000]

The lookups are those of `benchmarks.serving`: 26 tables of 100,000 rows x 16, raw ids in serialized tf.Examples. The
model that is loaded has one table of `--rows` x 64. The types take turns in one process with one thread; figures are
CPU times, medians over the rounds. Rows are normally distributed with a deviation of 0.1.
"""

import argparse
import functools
import os
import statistics
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.measuring import ratio, show, spent, spread, table, take_turns
from benchmarks.serving import DIM, NAMES, ROWS, Case, Served, examples_of, measure, ours
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.serving.export import embeddings_signature
from embedding_core.serving.lookups import rounded
from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving_config import ROWS_DTYPES

LOADED_DIM = 64


def lookups(options):
    """Yield the cells of each kind of ids and batch size."""
    generator = np.random.default_rng(7)
    tables = [generator.normal(0, 0.1, (ROWS, DIM)).astype(np.float32) for _ in NAMES]
    for case in (Case(False, False), Case(False, True)):
        served = {dtype: Served(functools.partial(ours, rows_dtype=dtype), case, tables, "") for dtype in ROWS_DTYPES}
        for batch in options.batches:
            times = measure(served, examples_of(case, batch, generator), options.rounds)
            middle = (f"{statistics.median(times[dtype]):.0f}" for dtype in ROWS_DTYPES)
            ratios = (ratio(times[dtype], times["float32"]) for dtype in ROWS_DTYPES[1:])
            yield [str(case), str(batch), *middle, *ratios]


def loads(options):
    """Yield the cells of each type: bytes, CPU seconds to load, and the error of the rows."""
    rows = np.random.default_rng(7).normal(0, 0.1, (options.rows, LOADED_DIM)).astype(np.float32)
    config = EmbeddingConfig(
        tables=(TableConfig(name="item", vocabulary_size=options.rows, dim=LOADED_DIM),),
        features=(FeatureConfig(name="item", table="item"),),
    )
    sizes, turns = {}, {}
    for dtype in ROWS_DTYPES:
        folder = Path(options.folder) / f"served_{dtype}"
        module = ServingModule(config, {"item": rows}, {}, None, dtype)
        tf.saved_model.save(module, str(folder), signatures=embeddings_signature(module))
        sizes[dtype] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        turns[dtype] = functools.partial(spent, functools.partial(load, str(folder)))
    seconds = take_turns(turns, options.rounds)
    for dtype in ROWS_DTYPES:
        gap = np.abs(rounded(rows, dtype) - rows)
        share, spread_of = sizes[dtype] / sizes["float32"], spread([each.cpu for each in seconds[dtype]], 2)
        yield [dtype, f"{sizes[dtype]:,}", f"{share:.3f}", spread_of, f"{gap.max():.2g}", f"{gap.mean():.2g}"]


def load(folder):
    """Load a model into a session."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        tf.compat.v1.saved_model.load(session, ["serve"], folder)


def main():
    """Measure, and print two tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 512])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    times, ratios = (
        [f"{dtype} us" for dtype in ROWS_DTYPES],
        [f"{dtype} / float32 (range)" for dtype in ROWS_DTYPES[1:]],
    )
    show(table(["case", "batch", *times, *ratios], lookups(options)), None, "")
    head = ["rows", "bytes of the model", "share", "CPU s to load (range)", "largest error", "mean error"]
    show(table(head, loads(options)), None, "")


if __name__ == "__main__":
    main()

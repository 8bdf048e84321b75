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
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.serving import CALLS, DIM, NAMES, ROWS, Case, Served, examples_of, measure, ours
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.rows_dtype import ROWS_DTYPES
from embedding_core.serving.lookups import rounded
from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving.signatures import embeddings_signature

LOADED_DIM = 64


def lookups(options):
    """Print a table row for each kind of ids and batch size."""
    generator = np.random.default_rng(7)
    tables = [generator.normal(0, 0.1, (ROWS, DIM)).astype(np.float32) for _ in NAMES]
    for case in (Case(False, False), Case(False, True)):
        served = {dtype: Served(functools.partial(ours, rows_dtype=dtype), case, tables, "") for dtype in ROWS_DTYPES}
        for batch in options.batches:
            examples = examples_of(case, batch, 0.0, generator)
            found = measure(served, examples, CALLS.get(batch, 8), options.rounds)
            exact = found["float32"]
            cells = [f"{statistics.median(found[dtype]):.0f}" for dtype in ROWS_DTYPES]
            for dtype in ROWS_DTYPES[1:]:
                ratios = sorted(mine / full for mine, full in zip(found[dtype], exact, strict=True))
                cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")
            print(f"| {case} | {batch} | {' | '.join(cells)} |", flush=True)


def loads(options):
    """Print a table row for each type: bytes, CPU seconds to load, and the error of the rows."""
    rows = np.random.default_rng(7).normal(0, 0.1, (options.rows, LOADED_DIM)).astype(np.float32)
    config = EmbeddingConfig(
        tables=(TableConfig(name="item", vocabulary_size=options.rows, dim=LOADED_DIM),),
        features=(FeatureConfig(name="item", table="item"),),
    )
    folders, sizes, seconds = {}, {}, {dtype: [] for dtype in ROWS_DTYPES}
    for dtype in ROWS_DTYPES:
        folders[dtype] = Path(options.folder) / f"served_{dtype}"
        module = ServingModule(config, {"item": rows}, {}, None, dtype)
        tf.saved_model.save(module, str(folders[dtype]), signatures=embeddings_signature(module))
        sizes[dtype] = sum(file.stat().st_size for file in folders[dtype].rglob("*") if file.is_file())
    for _ in range(options.rounds):
        for dtype, folder in folders.items():
            start = time.process_time()
            with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
                tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
            seconds[dtype].append(time.process_time() - start)
    for dtype in ROWS_DTYPES:
        gap = np.abs(rounded(rows, dtype) - rows)
        print(
            f"| {dtype} | {sizes[dtype]:,} | {sizes[dtype] / sizes['float32']:.3f} | "
            f"{statistics.median(seconds[dtype]):.2f} ({min(seconds[dtype]):.2f}-{max(seconds[dtype]):.2f}) | "
            f"{gap.max():.2g} | {gap.mean():.2g} |",
            flush=True,
        )


def main():
    """Measure, and print two tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 512])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    print("| case | batch | float32 us | float16 us | int8 us | float16 / float32 (range) | int8 / float32 (range) |")
    print("|---|---|---|---|---|---|---|")
    lookups(options)
    print("\n| rows | bytes of the model | share | CPU s to load (range) | largest error | mean error |")
    print("|---|---|---|---|---|---|")
    loads(options)


if __name__ == "__main__":
    main()

"""Measures the peak memory of an export: ``python -m benchmarks.serving_memory <folder>``.

The model has one table of raw ids with dim 64. "live" exports a variable whose rows were updated sparsely, as in
training; "assigned" exports one that was only assigned as a whole; "checkpoint" exports the table of an embedding
checkpoint; "float16" and "int8" export the same table with rows of these types. Each runs in a new process. The figure
is the peak resident set (VmHWM) during the export minus the resident set before it, in bytes and as a share of the
float32 table.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

DIM, SLICE = 64, 1 << 16
KINDS = ("live", "assigned", "checkpoint", "float16", "int8")


def slices(rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield slices of a table, each with its first row; every value is the row number modulo 1000."""
    for start in range(0, rows, SLICE):
        numbers = (np.arange(start, min(start + SLICE, rows)) % 1000).astype(np.float32)
        yield start, np.repeat(numbers[:, np.newaxis], DIM, axis=1)


def measured(kind: str, folder: str, rows: int) -> dict[str, Any]:
    """Export in this process, and return the figures."""
    import tensorflow as tf

    from embedding_core.checkpoint import write_tables
    from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
    from embedding_core.model_inputs import model_inputs
    from embedding_core.serving import export_embeddings, export_model

    config = EmbeddingConfig(
        tables=(TableConfig(name="item", vocabulary_size=rows, dim=DIM),),
        features=(FeatureConfig(name="id", table="item", column=ColumnConfig(name="id", dtype="int64")),),
    )
    source, model_folder = os.path.join(folder, "checkpoint"), os.path.join(folder, f"model_{kind}")
    if kind not in {"live", "assigned"}:
        if not os.path.exists(source):
            write_tables(source, config, lambda key: slices(rows), step=1, vocabularies={})
        dtype = "float32" if kind == "checkpoint" else kind
        found = peak(lambda: export_embeddings(source, model_folder, rows_dtype=dtype))
    else:
        table = tf.Variable(tf.zeros([rows, DIM]))
        for start, values in slices(rows if kind == "live" else 0):
            table.scatter_update(tf.IndexedSlices(values, np.arange(start, start + len(values))))
        import tf_keras

        embeddings, _ = model_inputs(config, ())
        model = tf_keras.Model([embeddings, {}], tf_keras.layers.Dense(1)(embeddings["id"]))
        given = {"config": config, "tables": {"item": table}, "vocabularies": {}, "model": model}
        found = peak(lambda: export_model(model_folder, **given))
    shutil.rmtree(model_folder)
    size = 4 * rows * DIM
    return {"kind": kind, "table_bytes": size, "extra_bytes": found, "share": round(found / size, 3)}


def peak(work: Any) -> int:
    """Run `work`, and return its peak resident set minus the resident set before it, in bytes."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def run(folder: str, rows: int) -> Iterator[dict[str, Any]]:
    """Measure each kind in a new process."""
    for kind in KINDS:
        command = [sys.executable, "-m", "benchmarks.serving_memory", folder, "--rows", str(rows), "--kind", kind]
        environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        yield json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, and print a line of JSON per kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=2**31 // (4 * DIM))
    parser.add_argument("--kind", choices=KINDS)
    given = parser.parse_args()
    os.makedirs(given.folder, exist_ok=True)
    found = [measured(given.kind, given.folder, given.rows)] if given.kind else run(given.folder, given.rows)
    for line in found:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

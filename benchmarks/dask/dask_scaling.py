"""Measures ExampleGen on Dask clusters of one and of two workers, by the clock, in alternation.

Run it with ``python -m benchmarks.dask.dask_scaling FOLDER``. It writes CSV files of long lines into the folder,
which take far longer to parse than to send. The workers have loaded TFX before the first measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time

import numpy as np

from benchmarks.dask.dask_cluster import running_cluster
from pipelines.dask.beam_runner import on_dask

_FILES, _TOKENS = 16, 40


def _write(folder: pathlib.Path, rows: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for number in range(_FILES):
        tokens = draw.zipf(1.2, (rows // _FILES, _TOKENS)) % 100_000
        lines = ("|".join(f"t{token}" for token in row) for row in tokens)
        (folder / f"part-{number:02d}.csv").write_text("label,item\n" + "".join(f"1,{line}\n" for line in lines))


def _seconds(data: pathlib.Path, address: str) -> float:
    from tfx.dsl.components.base import base_beam_executor
    from tfx.proto import example_gen_pb2
    from tfx.types import standard_artifacts
    from tfx.utils import proto_utils

    from components.example_gen.executor import Executor

    out = tempfile.mkdtemp(dir=data.parent)
    examples = standard_artifacts.Examples()
    examples.uri = os.path.join(out, "examples")
    pattern = example_gen_pb2.Input(splits=[example_gen_pb2.Input.Split(name="data", pattern="*.csv")])
    properties = {
        "input_base": str(data),
        "input_config": proto_utils.proto_to_json(pattern),
        "data_format": "csv",
        "settings": json.dumps({"columns": {"label": "float", "item": "token"}}),
    }
    context = base_beam_executor.BaseBeamExecutor.Context(
        beam_pipeline_args=[*on_dask(address)], tmp_dir=os.path.join(out, "tmp"), unique_id="1"
    )
    executor = Executor(context)
    try:
        begin = time.monotonic()
        executor.Do({}, {"examples": [examples]}, properties)
        return time.monotonic() - begin
    finally:
        shutil.rmtree(out)


def main() -> None:
    """Measure, and print a line for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=1_280_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    data = given.folder.absolute() / f"rows-{given.rows}"
    if not data.exists():
        _write(data, given.rows)
    scratch = tempfile.mkdtemp(dir=data.parent)
    with (
        running_cluster(pathlib.Path(scratch, "one"), 1) as one,
        running_cluster(pathlib.Path(scratch, "two"), 2) as two,
    ):
        clusters = {1: one.address, 2: two.address}
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for warm in (True, *[False] * given.rounds):
            for workers, address in clusters.items():
                taken = _seconds(data, address)
                if not warm:
                    seconds[workers].append(taken)
    shutil.rmtree(scratch)
    for workers, each in seconds.items():
        print(f"{workers} workers: median {statistics.median(each):.1f} s of {', '.join(f'{one:.1f}' for one in each)}")


if __name__ == "__main__":
    main()

"""Measures ExampleGen with and without `data.histories`, and histories by Beam's GroupByKey, on the same events.

Run it with ``python -m benchmarks.histories FOLDER --rows 1000000``. The first run writes the events into the folder.
Each measurement is a new process, pinned to one core; CPU time excludes imports. Memory is the peak resident set: in
total, and minus the peak after imports. The GroupByKey pipeline only writes a line of text for each event. It makes no
tf.Examples, checks nothing, and summarizes no columns.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_BEAM = ["--direct_running_mode=in_memory", "--direct_num_workers=1"]
_LENGTH = 50
_HISTORIES = {"user": "user", "time": "time", "columns": {"history": "item"}, "max_length": _LENGTH}


def write_events(path: pathlib.Path, rows: int) -> None:
    """Write events of users and items whose counts fall by a power law; a user has 20 events on average."""
    draw = np.random.default_rng(0)
    users = (rows / 20 * draw.random(rows) ** 2).astype(np.int64)
    items = (20_000 * draw.random(rows) ** 3).astype(np.int64)
    times = 1_600_000_000 + draw.integers(0, 30_000_000, rows)
    lines = (f"u{user},i{item},{at}\n" for user, item, at in zip(users, items, times, strict=True))
    with open(path, "w") as file:
        file.write("user,item,time\n")
        file.writelines(lines)


def _example_gen(data: pathlib.Path, out: pathlib.Path, **settings: Any) -> Callable[[], None]:
    from tfx.dsl.components.base import base_beam_executor
    from tfx.proto import example_gen_pb2
    from tfx.types import standard_artifacts
    from tfx.utils import proto_utils

    from components.example_gen.executor import Executor

    examples = standard_artifacts.Examples()
    examples.uri = str(out / "examples")
    pattern = example_gen_pb2.Input(splits=[example_gen_pb2.Input.Split(name="data", pattern=data.name)])
    properties = {
        "input_base": str(data.parent),
        "input_config": proto_utils.proto_to_json(pattern),
        "data_format": "csv",
        "settings": json.dumps(settings),
    }
    executor = Executor(base_beam_executor.BaseBeamExecutor.Context(beam_pipeline_args=_BEAM))
    return lambda: executor.Do({}, {"examples": [examples]}, properties)


def _with_histories(data: pathlib.Path, out: pathlib.Path) -> Callable[[], None]:
    columns = dict.fromkeys(("user", "item", "history"), "token")
    return _example_gen(data, out, columns=columns, histories=_HISTORIES, split={"by": "leave_one_out"})


def _without(data: pathlib.Path, out: pathlib.Path) -> Callable[[], None]:
    return _example_gen(data, out, columns=dict.fromkeys(("user", "item"), "token"), split={"by": "hash"})


def _histories(events: tuple[str, Any]) -> Iterator[str]:
    user, pairs = events
    items = [item for _, item in sorted(pairs)]
    for at, item in enumerate(items):
        yield f"{user},{item},{' '.join(items[max(0, at - _LENGTH) : at])}"


def _group_by_key(data: pathlib.Path, out: pathlib.Path) -> Callable[[], None]:
    import apache_beam as beam

    def keyed(line: str) -> tuple[str, tuple[int, str]]:
        user, item, at = line.split(",")
        return user, (int(at), item)

    def run() -> None:
        with beam.Pipeline(argv=_BEAM) as pipeline:
            lines = pipeline | beam.io.ReadFromText(str(data), skip_header_lines=1)
            grouped = lines | beam.Map(keyed) | beam.GroupByKey()
            _ = grouped | beam.FlatMap(_histories) | beam.io.WriteToText(str(out / "rows"))

    return run


_WAYS = {"with histories": _with_histories, "without": _without, "GroupByKey": _group_by_key}


def _measure(way: str, data: pathlib.Path) -> None:
    """Run one way in this process; print its figures as JSON."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    out = pathlib.Path(tempfile.mkdtemp(dir=data.parent))
    try:
        run = _WAYS[way](data, out)
        import tensorflow as tf

        tf.io.gfile.exists(str(out))
        before, started, cpu = resource.getrusage(resource.RUSAGE_SELF), time.monotonic(), time.process_time()
        run()
        after = resource.getrusage(resource.RUSAGE_SELF)
        wall, cpu = time.monotonic() - started, time.process_time() - cpu
    finally:
        shutil.rmtree(out)
    figures = {
        "way": way,
        "wall s": round(wall, 1),
        "CPU s": round(cpu, 1),
        "peak MB": after.ru_maxrss >> 10,
        "over imports MB": (after.ru_maxrss - before.ru_maxrss) >> 10,
    }
    print(json.dumps(figures))


def main() -> None:
    """Measure each way in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--way", choices=_WAYS, help="measure only this, in this process")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    data = given.folder / f"events-{given.rows}.csv"
    if not data.exists():
        write_events(data, given.rows)
    if given.way:
        _measure(given.way, data)
        return
    for way in _WAYS:
        command = [sys.executable, "-m", "benchmarks.histories", str(given.folder), "--rows", str(given.rows)]
        subprocess.run([*command, "--way", way], check=True)


if __name__ == "__main__":
    main()

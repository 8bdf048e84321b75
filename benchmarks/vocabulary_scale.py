"""Measures VocabularyGen at 1x, 2x, 4x and 8x rows: CPU seconds, memory, and the bytes that Beam shuffles.

    python -m benchmarks.vocabulary_scale FOLDER --rows 125000

Each measurement is a new process. CPU time is that of the process, memory its peak resident set, both without imports.
The bytes that Beam shuffles are those of the messages from the counting step to the merging step.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.zipf_examples import ZipfData, write_examples

TIMES = (1, 2, 4, 8)


def _measure(folder: pathlib.Path, names: list[str]) -> dict[str, Any]:
    """Count the examples in this process, and return the figures."""
    from tfx.dsl.components.base import base_beam_executor
    from tfx.types import standard_artifacts

    from components.artifacts import Vocabularies
    from components.vocabulary_gen.counting_plan import plan_counting
    from components.vocabulary_gen.executor import Executor
    from components.vocabulary_gen.file_counter import FileCounter

    features = json.dumps([{"name": name, "column": {"name": name}} for name in names])
    examples, vocabularies = standard_artifacts.Examples(), Vocabularies()
    examples.uri, examples.split_names = str(folder), '["train"]'
    examples.set_string_custom_property("payload_format", "FORMAT_TF_EXAMPLE")
    arguments = ["--direct_running_mode=in_memory", "--direct_num_workers=1"]
    with tempfile.TemporaryDirectory() as out:
        vocabularies.uri = out
        before = resource.getrusage(resource.RUSAGE_SELF)
        context = base_beam_executor.BaseBeamExecutor.Context(beam_pipeline_args=arguments)
        Executor(context).Do({"examples": [examples]}, {"vocabularies": [vocabularies]}, {"features": features})
        after = resource.getrusage(resource.RUSAGE_SELF)
    counter = FileCounter(plan_counting(json.loads(features), {}))
    shuffled = sum(
        len(message)
        for path in sorted((folder / "Split-train").iterdir())
        for _, message in counter.count(str(path)).messages()
    )
    sizes = vocabularies.fact("vocabularies")
    return {
        "rows": vocabularies.fact("rows"),
        "tokens": sum(one["size"] for one in sizes.values()),
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_mb": (after.ru_maxrss - before.ru_maxrss) / 1024,
        "shuffled_mb": shuffled / 1e6,
    }


def _row(one: dict[str, Any]) -> str:
    figures = (f"{one['rows']:,}", f"{one['tokens']:,}", f"{one['cpu']:.1f}", f"{1e6 * one['cpu'] / one['rows']:.1f}")
    return "| " + " | ".join([*figures, f"{one['peak_mb']:.0f}", f"{one['shuffled_mb']:.1f}"]) + " |"


def main() -> None:
    """Write the examples that are missing, measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=125_000)
    parser.add_argument("--measure", type=pathlib.Path)
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(_measure(given.measure, list(ZipfData(rows=1, features=26).names))))
        return
    print("| rows | tokens | CPU s | us a row | peak MB over start | MB shuffled |\n|---|---|---|---|---|---|")
    for times in TIMES:
        data = ZipfData(rows=given.rows * times, features=26, shards=2 * times)
        folder = given.folder / f"scale-{data.rows}"
        if not folder.exists():
            write_examples(data, folder / "Split-train")
        command = [sys.executable, "-m", "benchmarks.vocabulary_scale", str(given.folder), "--measure", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(_row(json.loads(done.stdout.splitlines()[-1])), flush=True)


if __name__ == "__main__":
    main()

"""Measures CPU seconds and peak memory of every component, from a Parquet file to a pushed model.

    python -m benchmarks.file_to_model FOLDER [--rows 50000 200000] [--torch PYTHON] [--into docs/benchmarks.md]

The rows are like Criteo's (`benchmarks.criteo_rows`); the model is DCN-v2, trained for one epoch with batch size 2048.
Each run is a new process with a new work_dir and an empty temporary folder: three runs up to 200,000 rows, one of more.
With `--torch`, each run is followed, for comparison, by a script that uses polars and PyTorch
(`peers/polars_torch.py`) in the Python that the option names. All results are kept in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from benchmarks.criteo_rows import NUMBERS, TEXTS, write_rows
from benchmarks.measuring import cpu_seconds, in_new_process, memory_mb, reset_peak, show, table

Figures: TypeAlias = dict[str, Any]

PEER = pathlib.Path(__file__).parent / "peers" / "polars_torch.py"
START, REPORT = "start-up", "report"


def configuration(file: pathlib.Path, work_dir: pathlib.Path) -> Figures:
    """Return the configuration of a run: tokens that occur at least twice get a row, and `dim` is 16."""
    return {
        "name": "file_to_model",
        "work_dir": str(work_dir),
        "data": str(file),
        "label": "label",
        "features": {"dense": [{"name": name, "log1p": True} for name in NUMBERS], "categorical": TEXTS},
        "vocabularies": {name: {"min_count": 2} for name in TEXTS},
        "tables": {name: {"dim": 16} for name in TEXTS},
        "model": "ranking",
        "training": {"epochs": 1, "batch_size": 2048, "early_stopping": None},
    }


def run_and_measure(config_file: str) -> Figures:
    """Run the pipeline in this process; return CPU seconds, peak memory and wall seconds by node."""
    from pipelines.config import load_config
    from pipelines.local import run_local

    marks: list[tuple[str, float, float, float]] = []

    def mark(name: str) -> None:
        marks.append((name, cpu_seconds(), time.monotonic(), memory_mb("VmHWM")))
        reset_peak()

    class Measured(run_local.ReportingDagRunner):
        def __init__(self, on_change: Any, *others: Any) -> None:
            def changed(node: Any) -> None:
                mark(START if node.state == "running" else node.node)
                on_change(node)

            super().__init__(changed, *others)

    run_local.ReportingDagRunner = Measured  # type: ignore[misc]
    started = time.monotonic()
    _, report = run_local.run(load_config(config_file))
    assert report is not None
    mark(REPORT)
    nodes: dict[str, Figures] = {}
    before = 0.0, started
    for name, cpu, wall, peak in marks:
        node = nodes.setdefault(name, {"cpu": 0.0, "wall": 0.0, "peak_mb": 0.0})
        node["cpu"] += cpu - before[0]
        node["wall"] += wall - before[1]
        node["peak_mb"] = max(node["peak_mb"], peak)
        before = cpu, wall
    (auc,) = [row["value"] for row in report.evaluation if row["metric"] == "AUC"]
    return {"nodes": nodes, "auc": auc, "pushed": report.push.pushed}


def measure(file: pathlib.Path, folder: pathlib.Path) -> Figures:
    """Run the pipeline in a new process, with a new work_dir and temporary folder, and return its figures."""
    scratch, work = folder / "tmp", folder / "work"
    for old in (scratch, work):
        shutil.rmtree(old, ignore_errors=True)
        old.mkdir(parents=True)
    config = folder / "config.yaml"
    config.write_text(json.dumps(configuration(file.absolute(), work.absolute())), encoding="utf-8")
    figures: Figures = in_new_process(run_and_measure, str(config), TMPDIR=str(scratch.absolute()))
    figures["cpu"] = sum(node["cpu"] for node in figures["nodes"].values())
    figures["peak_mb"] = max(node["peak_mb"] for node in figures["nodes"].values())
    figures["artifact_bytes"] = _bytes(work / "artifacts")
    figures["temporary_bytes"] = _bytes(scratch)
    figures["input_bytes"] = file.stat().st_size
    return figures


def _bytes(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def measure_peer(python: str, file: pathlib.Path) -> Figures:
    """Run the script with polars and PyTorch, and return its figures."""
    done = subprocess.run([python, "-W", "ignore", str(PEER), str(file)], check=True, stdout=subprocess.PIPE)
    figures: Figures = json.loads(done.stdout)
    return figures


def median(value: Callable[[Figures], float], runs: list[Figures]) -> float:
    """Return the median of a value of the runs."""
    return statistics.median(map(value, runs))


def table_of(results: dict[str, list[Figures]]) -> str:
    """Return the figures as a Markdown table: medians of the runs of each size; peak memory of the last size.

    Nodes below 1 CPU s at the last size are left out.
    """
    ours = [[run["ours"] for run in runs] for runs in results.values()]
    peers = [[run["peer"] for run in runs if "peer" in run] for runs in results.values()]
    rows = []
    for name in ours[-1][0]["nodes"]:
        if median(lambda run: run["nodes"][name]["cpu"], ours[-1]) < 1:  # noqa: B023
            continue
        cells = [f"{median(lambda run: run['nodes'][name]['cpu'], runs):.1f}" for runs in ours]  # noqa: B023
        rows.append([name, *cells, f"{median(lambda run: run['nodes'][name]['peak_mb'], ours[-1]):,.0f}"])  # noqa: B023
    for name, form, sides in (("**whole run**", "**{:.0f}**", ours), ("polars and PyTorch", "{:.0f}", peers)):
        if all(sides):
            cells = [form.format(median(lambda run: run["cpu"], runs)) for runs in sides]
            rows.append([name, *cells, f"{median(lambda run: run['peak_mb'], sides[-1]):,.0f}"])
    for words, value in (
        ("artifacts, times the input", lambda run: run["artifact_bytes"] / run["input_bytes"]),
        ("AUC", lambda run: run["auc"]),
    ):
        rows.append([words, *(f"{median(value, runs):.3g}" for runs in ours), ""])
    return table(["CPU s", *(f"{int(size):,} rows" for size in results), "peak MB"], rows)


def main() -> None:
    """Measure the runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000, 800_000, 3_000_000])
    parser.add_argument("--torch", help="a Python that has torch and polars")
    parser.add_argument("--into", type=pathlib.Path, help="a file with the marks between which the table is put")
    given = parser.parse_args()
    results: dict[str, list[Figures]] = {str(size): [] for size in given.rows}
    for size in given.rows:
        file = given.folder / f"rows-{size}.parquet"
        write_rows(file, size)
        for _ in range(3 if size <= 200_000 else 1):
            run = {"ours": measure(file, given.folder / "run")}
            if given.torch:
                run["peer"] = measure_peer(given.torch, file)
            results[str(size)].append(run)
            (given.folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    show(table_of(results), given.into, "file to model")


if __name__ == "__main__":
    main()

"""Measures CPU seconds and peak memory of every component, from a Parquet file to a pushed model.

    python -m benchmarks.file_to_model FOLDER [--rows 50000 200000] [--rounds 3] [--torch PYTHON]
        [--into docs/benchmarks.md]

The rows are like Criteo's (`benchmarks.criteo_rows`); the model is DCN-v2, trained for one epoch with batch size 2048.
Each run is a new process with a new work_dir and an empty temporary folder. With `--torch`, each run is followed, for
comparison, by a script that uses polars and PyTorch (`peers/polars_torch.py`) in the Python that the option names. All
results are kept in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any, TypeAlias

from benchmarks.criteo_rows import NUMBERS, TEXTS, write_rows
from benchmarks.marked_pages import write_between

Figures: TypeAlias = dict[str, Any]

PEER = pathlib.Path(__file__).parent / "peers" / "polars_torch.py"
START, REPORT = "start-up", "report"
_MB = 1 << 20


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
        marks.append((name, _cpu(), time.monotonic(), _peak_mb()))
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak, VmHWM

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


def _cpu() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    return sum(os.times()[:4])


def _peak_mb() -> float:
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(file: pathlib.Path, folder: pathlib.Path) -> Figures:
    """Run the pipeline in a new process, with a new work_dir and temporary folder, and return its figures."""
    scratch, work = folder / "tmp", folder / "work"
    for old in (scratch, work):
        shutil.rmtree(old, ignore_errors=True)
        old.mkdir(parents=True)
    config = folder / "config.yaml"
    config.write_text(json.dumps(configuration(file.absolute(), work.absolute())), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.file_to_model", "--child", str(config), str(folder)]
    subprocess.run(command, check=True, env={**os.environ, "TMPDIR": str(scratch.absolute())})
    figures: Figures = json.loads((folder / "child.json").read_text(encoding="utf-8"))
    figures["cpu"] = sum(node["cpu"] for node in figures["nodes"].values())
    figures["peak_mb"] = max(node["peak_mb"] for node in figures["nodes"].values())
    figures["artifact_bytes"] = {one.name: _bytes(one) for one in sorted((work / "artifacts").iterdir())}
    figures["work_bytes"] = _bytes(work)
    figures["temporary_bytes"] = _bytes(scratch)
    figures["input_bytes"] = file.stat().st_size
    return figures


def _bytes(folder: pathlib.Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file() and not one.is_symlink())


def measure_peer(python: str, file: pathlib.Path) -> Figures:
    """Run the script with polars and PyTorch, and return its figures."""
    done = subprocess.run([python, "-W", "ignore", str(PEER), str(file)], check=True, stdout=subprocess.PIPE)
    figures: Figures = json.loads(done.stdout)
    return figures


def table(results: dict[str, list[Figures]]) -> str:
    """Return the figures as a Markdown table: medians of the runs of each size; peak memory of the last size."""
    sizes = list(results)
    lines = [f"| CPU s | {' | '.join(f'{int(size):,} rows' for size in sizes)} | peak MB |", "|---|" * 1]
    lines[1] = "|" + "---|" * (len(sizes) + 2)
    ours = {size: [run["ours"] for run in results[size]] for size in sizes}
    for name in ours[sizes[-1]][0]["nodes"]:
        cells = [f"{statistics.median(run['nodes'][name]['cpu'] for run in ours[size]):.1f}" for size in sizes]
        peak = statistics.median(run["nodes"][name]["peak_mb"] for run in ours[sizes[-1]])
        lines.append(f"| {name} | {' | '.join(cells)} | {peak:,.0f} |")
    totals = [f"**{statistics.median(run['cpu'] for run in ours[size]):.0f}**" for size in sizes]
    peak = statistics.median(run["peak_mb"] for run in ours[sizes[-1]])
    lines.append(f"| **whole run** | {' | '.join(totals)} | {peak:,.0f} |")
    peers = {size: [run["peer"] for run in results[size] if run.get("peer")] for size in sizes}
    if all(peers.values()):
        cells = [f"{statistics.median(run['cpu'] for run in peers[size]):.0f}" for size in sizes]
        peak = statistics.median(run["peak_mb"] for run in peers[sizes[-1]])
        lines.append(f"| polars and PyTorch | {' | '.join(cells)} | {peak:,.0f} |")
    for words, value in (
        ("artifacts, times the input", lambda run: sum(run["artifact_bytes"].values()) / run["input_bytes"]),
        ("MB left in the temporary folder", lambda run: run["temporary_bytes"] / _MB),
        ("AUC", lambda run: run["auc"]),
    ):
        cells = [f"{statistics.median(value(run) for run in ours[size]):.3g}" for size in sizes]
        lines.append(f"| {words} | {' | '.join(cells)} | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--torch", help="a Python that has torch and polars")
    parser.add_argument("--into", type=pathlib.Path, help="a file with the marks between which the table is put")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        figures = run_and_measure(given.child[0])
        pathlib.Path(given.child[1], "child.json").write_text(json.dumps(figures), encoding="utf-8")
        return
    results: dict[str, list[Figures]] = {str(size): [] for size in given.rows}
    for size in given.rows:
        file = given.folder / f"rows-{size}.parquet"
        write_rows(file, size)
        for _ in range(given.rounds):
            run = {"ours": measure(file, given.folder / "run")}
            if given.torch:
                run["peer"] = measure_peer(given.torch, file)
            results[str(size)].append(run)
            (given.folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    text = table(results)
    print(text)
    if given.into:
        write_between(given.into, "file to model", text)


if __name__ == "__main__":
    main()

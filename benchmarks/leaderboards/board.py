"""Runs the pipeline of a leaderboard once for each seed, and puts its figures beside the published ones."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from benchmarks.measuring import show, table
from embedding_core.errors import DataError

Figures: TypeAlias = dict[str, float]
RunPipeline: TypeAlias = Callable[[pathlib.Path, Sequence[str]], None]

_NOTHING_PUSHED = 3  # exit code of `tfx-embeddings run`: the report is written, but nothing was pushed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One data set, run once for each seed.

    Attributes:
      name: name of the part; with the seed, it names the folder of the run.
      data: file with the rows.
    """

    name: str
    data: pathlib.Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Board:
    """One published table.

    Attributes:
      name: name of the data set, and of the folder of its runs.
      config: the YAML file of the pipeline.
      metrics: names of the published metrics, as in `report.json`.
      published: figures of each published model, in the order of `metrics`.
      parts: runs of one seed; a seed's metric is the mean over them.
    """

    name: str
    config: pathlib.Path
    metrics: tuple[str, ...]
    published: Mapping[str, tuple[float, ...]]
    parts: tuple[Part, ...]


def run_command(config: pathlib.Path, overrides: Sequence[str]) -> None:
    """Run the pipeline in a new process, so that its CPU time is that of the whole run, imports included."""
    settings = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "pipelines.commands.cli", "run", str(config), *settings]
    code = subprocess.run(command, check=False).returncode
    if code not in (0, _NOTHING_PUSHED):
        raise subprocess.CalledProcessError(code, command)


def measure(board: Board, part: Part, seed: int, folder: pathlib.Path, run: RunPipeline = run_command) -> Figures:
    """Run the pipeline of one part in a new work_dir.

    Returns:
      The board's metrics, and `cpu`, the CPU seconds of the run.

    Raises:
      DataError: the report lacks one of the metrics.
    """
    work = folder.absolute() / f"{part.name}-{seed}"
    shutil.rmtree(work, ignore_errors=True)
    settings = {"data.path": part.data.absolute(), "work_dir": work, "seed": seed}
    before = _cpu_of_children()
    run(board.config, [f"{key}={value}" for key, value in settings.items()])
    spent = {"cpu": _cpu_of_children() - before}
    report = json.loads((work / "report" / "report.json").read_text(encoding="utf-8"))
    found = {row["metric"]: row["value"] for row in report["evaluation"]}
    missing = [name for name in board.metrics if name not in found]
    if missing:
        raise DataError(f"{work}/report/report.json has no {', '.join(missing)}, only {', '.join(sorted(found))}.")
    return {**{name: found[name] for name in board.metrics}, **spent}


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_board(
    board: Board, seeds: Sequence[int], folder: pathlib.Path, run: RunPipeline = run_command
) -> list[Figures]:
    """Run all parts for each seed, keep the figures in `results.json`, and skip runs whose figures it holds.

    Returns:
      The figures of each seed: means over the parts, and the sums of their seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "results.json"
    results: dict[str, Figures] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for seed in seeds:
        for part in board.parts:
            key = f"{part.name}-{seed}"
            if key not in results:
                results[key] = measure(board, part, seed, folder, run)
                kept.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return [_of_seed(board, [results[f"{part.name}-{seed}"] for part in board.parts]) for seed in seeds]


def _of_seed(board: Board, parts: Sequence[Figures]) -> Figures:
    means = {name: statistics.fmean(part[name] for part in parts) for name in board.metrics}
    return {**means, "cpu": sum(part["cpu"] for part in parts)}


def table_of(boards: Sequence[tuple[Board, Sequence[Figures]]]) -> str:
    """Return the published figures and the means and ranges of ours as a Markdown table."""
    metrics = boards[0][0].metrics
    rows = []
    for board, seeds in boards:
        for model, figures in board.published.items():
            rows.append([board.name, model, *(f"{figure:.4f}" for figure in figures), ""])
        cells = [f"**{_spread([seed[name] for seed in seeds], 4)}**" for name in metrics]
        spent = _spread([seed["cpu"] / 60 for seed in seeds], 1)
        rows.append([board.name, f"this project, {len(seeds)} seed{'s' * (len(seeds) > 1)}", *cells, spent])
    return table(["data", "model", *metrics, "CPU min"], rows)


def _spread(values: Sequence[float], digits: int) -> str:
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def parser(description: str | None, name: str) -> argparse.ArgumentParser:
    """Make the parser of the arguments that all leaderboards have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=pathlib.Path, required=True, help="folder with the files of the data set")
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    made.add_argument("--work", type=pathlib.Path, default=pathlib.Path("runs/leaderboards", name))
    made.add_argument("--into", type=pathlib.Path, help="a page with the marks between which the table is put")
    return made


def report(boards: Sequence[Board], given: argparse.Namespace, name: str) -> None:
    """Run the boards as the command line says, and print the table."""
    results = [(board, run_board(board, given.seeds, given.work / board.name)) for board in boards]
    show(table_of(results), given.into, name)


def needed(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Return the path of a file of the folder.

    Raises:
      DataError: there is no such file.
    """
    if not (folder / name).is_file():
        raise DataError(f"{folder} has no {name}: give the folder of the data set as --data.")
    return folder / name


def described(config: str) -> pathlib.Path:
    """Return the path of a configuration beside this file."""
    return pathlib.Path(__file__).with_name(config)

"""Compares the ranking model at its default settings with the logistic regression of the report.

    python -m benchmarks.ranking_defaults FOLDER [--rows 50000 200000] [--seeds 0] [--sets census ratings]
        [--into docs/benchmarks.md]

Each run is a whole pipeline from a Parquet file to a pushed version, in a separate process; its report gives the AUC
of both models. `benchmarks.ranking_sets` makes the data sets. All results are kept in FOLDER, and a run whose result
is there is not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
from typing import Any, TypeAlias

from pyarrow import parquet

from benchmarks.measuring import in_new_process, show, table
from benchmarks.ranking_sets import DEVELOPMENT, HELD_OUT

Results: TypeAlias = dict[str, dict[str, float]]


def configuration(name: str, rows: int, folder: pathlib.Path, seed: int) -> dict[str, Any]:
    """Write the rows unless their file exists, and return a configuration that leaves the model at its defaults."""
    work_dir = folder / f"{name}-{rows}"
    made = {**DEVELOPMENT, **HELD_OUT}[name](rows)
    file = work_dir / "rows.parquet"
    if not file.exists():
        work_dir.mkdir(parents=True, exist_ok=True)
        parquet.write_table(made.table, file)
    return {
        "name": "ranking_defaults",
        "work_dir": str(work_dir / "work"),
        "data": str(file),
        "seed": seed,
        "label": "label",
        "features": {
            "dense": [{"name": column, "log1p": made.log1p} for column in made.dense],
            "categorical": list(made.categorical),
        },
    }


def run(config_file: str) -> dict[str, float]:
    """Run the pipeline, and return the AUC of each scorer."""
    from pipelines.config import load_config
    from pipelines.local.run_local import run as run_local

    _, report = run_local(load_config(config_file))
    assert report is not None
    return {scores["scorer"]: scores["metrics"]["AUC"] for scores in report.quality}


def measure(name: str, rows: int, folder: pathlib.Path, seed: int) -> dict[str, float]:
    """Run the pipeline in a new process; return the AUC of the model and of the regression."""
    file = folder / "config.yaml"
    file.write_text(json.dumps(configuration(name, rows, folder.absolute(), seed)), encoding="utf-8")
    figures = in_new_process(run, str(file))
    return {"model": figures["this model"], "regression": figures["logistic regression, one-hot"]}


def table_of(results: Results) -> str:
    """Return the mean AUC over the seeds, for each set that the defaults were not chosen on, as a Markdown table."""
    names, sizes = (list(dict.fromkeys(key.split("|")[part] for key in results)) for part in (0, 1))
    lines = []
    for name in (name for name in names if name in HELD_OUT):
        cells = []
        for size in sizes:
            runs = [result for key, result in results.items() if key.split("|")[:2] == [name, size]]
            model, regression = (statistics.mean(figures[key] for figures in runs) for key in ("model", "regression"))
            cells += [f"{model:.4f}", f"{regression:.4f}", f"{model - regression:+.4f}"]
        lines.append([name, *cells])
    head = [[f"model, {int(size):,} rows", "regression", "difference"] for size in sizes]
    return table(["held-out set", *itertools.chain(*head)], lines)


def main() -> None:
    """Measure the runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--sets", nargs="+", choices=[*DEVELOPMENT, *HELD_OUT], default=[*DEVELOPMENT, *HELD_OUT])
    parser.add_argument("--into", type=pathlib.Path, help="a file with the marks between which the table is put")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    kept = given.folder / "results.json"
    results: Results = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for rows, name, seed in itertools.product(given.rows, given.sets, given.seeds):
        key = f"{name}|{rows}|{seed}"
        if key not in results:
            results[key] = measure(name, rows, given.folder, seed)
            kept.write_text(json.dumps(results, indent=1), encoding="utf-8")
    show(table_of(results), given.into, "ranking defaults")


if __name__ == "__main__":
    main()

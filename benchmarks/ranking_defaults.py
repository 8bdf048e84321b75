"""Compares the ranking model at its default settings with regression and trees, on the public tables of `ranking_sets`.

    python -m benchmarks.ranking_defaults FOLDER --clones CLONES [--rows 5000 50000 200000] [--seeds 0 1 2]
        [--sets "employee access"] [--models ranking dlrm] [--into docs/benchmarks.md]

Each run is a whole pipeline from a Parquet file to a pushed version, in a separate process; its report gives the scores
of the model, of the regression and of scikit-learn's HistGradientBoosting. LightGBM, if it is installed, is fitted on
the same rows at its defaults. All results are kept in FOLDER, and a run whose result is there is not repeated.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.measuring import cpu_seconds, in_new_process, show, table
from benchmarks.ranking_sets import DEVELOPMENT, HELD_BACK, PublicTable, read_table

Figures: TypeAlias = list[float]
"""AUC, log loss and CPU seconds."""
SCORERS = {
    "model": "this model",
    "regression": "logistic regression, one-hot",
    "histogram boosting": "gradient-boosted trees",
}


def configuration(name: str, folder: pathlib.Path, seed: int, model: str) -> dict[str, Any]:
    """Return a configuration that leaves the model at its defaults."""
    given = {**DEVELOPMENT, **HELD_BACK}[name]
    dense = [{"name": column, "log1p": column in given.log1p.split()} for column in given.dense.split()]
    return {
        "name": "ranking_defaults",
        "work_dir": str(folder / "work"),
        "data": {"path": str(folder / "train.parquet"), "eval_path": str(folder / "eval.parquet")},
        "seed": seed,
        "label": "label",
        "features": {"dense": dense, "categorical": given.tokens.split()},
        "evaluation": {"thresholds": {"AUC": {"min": 0}}, "baselines": ["regression", "trees"]},
        "health": None,
        "model": model,
    }


def run(config_file: str) -> dict[str, Figures]:
    """Run the pipeline, and return the figures of the model and of the report's baselines; CPU time is of all of it."""
    from pipelines.config import load_config
    from pipelines.local.run_local import run as run_local

    before = cpu_seconds()
    _, report = run_local(load_config(config_file))
    assert report is not None
    spent = cpu_seconds() - before
    metrics = {scores["scorer"]: scores["metrics"] for scores in report.quality}
    return {name: [metrics[scorer]["AUC"], metrics[scorer]["log loss"], spent] for name, scorer in SCORERS.items()}


def fit_lightgbm(name: str, clones: str, rows: int, seed: int) -> Figures:
    """Fit LightGBM on the rows; tokens are categories."""
    import lightgbm

    before = time.process_time()
    train, judged = read_table(name, pathlib.Path(clones), rows)
    for column in {**DEVELOPMENT, **HELD_BACK}[name].tokens.split():
        known = train[column].value_counts().index
        for part in (train, judged):
            part[column] = pandas.Categorical(part[column], known)
    label, judged_label = train.pop("label"), judged.pop("label")
    model = lightgbm.LGBMClassifier(n_jobs=1, verbose=-1, random_state=seed)
    predicted = model.fit(train, label).predict_proba(judged)[:, 1]
    figures = (roc_auc_score(judged_label, predicted), log_loss(judged_label, predicted))
    return [*map(float, figures), time.process_time() - before]


def measure(name: str, rows: int, folder: pathlib.Path, clones: pathlib.Path, seed: int, model: str) -> dict[str, Any]:
    """Measure a model in a new process, and beside the default one the baselines."""
    below = folder.absolute() / f"{name}-{rows}"
    file = below / "config.yaml"
    if not below.exists():
        below.mkdir(parents=True)
        for part, frame in zip(("train", "eval"), read_table(name, clones, rows), strict=True):
            frame.astype({"label": int}).to_parquet(below / f"{part}.parquet")
    file.write_text(json.dumps(configuration(name, below, seed, model)), encoding="utf-8")
    figures = in_new_process(run, str(file))
    if model != "ranking":
        return {model: figures["model"]}
    if importlib.util.find_spec("lightgbm"):
        figures["LightGBM"] = in_new_process(fit_lightgbm, name, str(clones), rows, seed)
    return figures


def table_of(results: dict[str, dict[str, Figures]], tables: Mapping[str, PublicTable]) -> str:
    """Return means over the seeds, AUC/log loss, as a Markdown table; for the model also AUC's range and CPU time."""
    scorers = list(dict.fromkeys(itertools.chain(*results.values())))
    lines = []
    for name, size in dict.fromkeys(tuple(key.split("|")[:2]) for key in results):
        if name not in tables:
            continue
        runs = [figures for key, figures in results.items() if key.split("|")[:2] == [name, size]]
        by_scorer = {scorer: [figures[scorer] for figures in runs if scorer in figures] for scorer in scorers}
        means = [np.mean(figures, axis=0) for figures in by_scorer.values()]
        aucs = [auc for auc, _, _ in by_scorer["model"]]
        cells = [*(f"{auc:.4f}/{loss:.4f}" for auc, loss, _ in means), f"{min(aucs):.4f}-{max(aucs):.4f}"]
        lines.append([name, f"{int(size):,}", *cells, f"{means[0][2]:.0f}"])
    return table(["table", "rows", *scorers, "AUC of seeds", "CPU s"], lines)


def main() -> None:
    """Measure the runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--clones", type=pathlib.Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[5000, 50_000, 200_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sets", nargs="+", choices=[*DEVELOPMENT, *HELD_BACK], default=[*DEVELOPMENT, *HELD_BACK])
    parser.add_argument("--models", nargs="+", default=["ranking"])
    parser.add_argument("--into", type=pathlib.Path, help="a file with the marks between which the table is put")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    kept = given.folder / "results.json"
    results: dict[str, dict[str, Figures]] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for rows, name, seed, model in itertools.product(given.rows, given.sets, given.seeds, given.models):
        whole = len(read_table(name, given.clones, rows)[0])  # a table may have less
        key = f"{name}|{whole}|{seed}"
        if ("model" if model == "ranking" else model) not in results.get(key, {}):
            measured = measure(name, whole, given.folder, given.clones, seed, model)
            results[key] = {**results.get(key, {}), **measured}
            kept.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(table_of(results, DEVELOPMENT))
    show(table_of(results, HELD_BACK), given.into, "ranking defaults")


if __name__ == "__main__":
    main()

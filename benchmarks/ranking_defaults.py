"""Compares the ranking model at its default settings with regression and trees, on the public tables of `ranking_sets`.

    python -m benchmarks.ranking_defaults FOLDER --clones CLONES [--rows 5000 50000 200000] [--seeds 0 1 2]
        [--sets "employee access"] [--models ranking dlrm] [--into docs/benchmarks.md]

Each run is a whole pipeline from a Parquet file to a pushed version, in a separate process; its report gives the scores
of the model and of the regression. The trees are scikit-learn's HistGradientBoosting and, if it is installed, LightGBM,
at their defaults. All results are kept in FOLDER, and a run whose result is there is not repeated.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import pathlib
import time
from typing import Any, TypeAlias

import pandas
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.measuring import cpu_seconds, in_new_process, show, spread, table
from benchmarks.ranking_sets import DEVELOPMENT, HELD_BACK, read_table

Figures: TypeAlias = list[float]
"""AUC, log loss and CPU seconds."""
_TREES = ("histogram boosting", *(("LightGBM",) if importlib.util.find_spec("lightgbm") else ()))
_MOST_CATEGORIES = 255  # scikit-learn's limit: a column with more is a number, the token's position by its count


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
        "evaluation": {"thresholds": {"AUC": {"min": 0}}},
        "health": None,
        "model": model,
    }


def run(config_file: str) -> dict[str, Figures]:
    """Run the pipeline, and return the figures of the model and of the regression, whose CPU time is not measured."""
    from pipelines.config import load_config
    from pipelines.local.run_local import run as run_local

    before = cpu_seconds()
    _, report = run_local(load_config(config_file))
    assert report is not None
    metrics = {scores["scorer"]: scores["metrics"] for scores in report.quality}
    chosen = {"model": metrics["this model"], "regression": metrics["logistic regression, one-hot"]}
    spent = {"model": cpu_seconds() - before, "regression": float("nan")}
    return {name: [values["AUC"], values["log loss"], spent[name]] for name, values in chosen.items()}


def fit_trees(kind: str, name: str, clones: str, rows: int, seed: int) -> Figures:
    """Fit trees on the rows; tokens are categories."""
    before = time.process_time()
    train, judged = read_table(name, pathlib.Path(clones), rows)
    tokens = {**DEVELOPMENT, **HELD_BACK}[name].tokens.split()
    few = []
    for column in tokens:
        known = train[column].value_counts().index
        few.append(kind == "LightGBM" or len(known) <= _MOST_CATEGORIES)
        for part in (train, judged):
            categories = pandas.Categorical(part[column], known)
            part[column] = categories if few[-1] else categories.codes
    label, judged_label = train.pop("label"), judged.pop("label")
    if kind == "LightGBM":
        import lightgbm

        model = lightgbm.LGBMClassifier(n_jobs=1, verbose=-1, random_state=seed)
    else:
        chosen = [column for column, is_few in zip(tokens, few, strict=True) if is_few]
        for part in (train, judged):
            part[chosen] = part[chosen].apply(lambda column: column.cat.codes.replace(-1, float("nan")))
        model = HistGradientBoostingClassifier(categorical_features=chosen, random_state=seed)
    predicted = model.fit(train, label).predict_proba(judged)[:, 1]
    figures = (roc_auc_score(judged_label, predicted), log_loss(judged_label, predicted))
    return [*map(float, figures), time.process_time() - before]


def measure(name: str, rows: int, folder: pathlib.Path, clones: pathlib.Path, seed: int, model: str) -> dict[str, Any]:
    """Measure a model in a new process, and beside the default one the regression and the trees."""
    below = folder.absolute() / f"{name}-{rows}"
    if not below.exists():
        below.mkdir(parents=True)
        for part, frame in zip(("train", "eval"), read_table(name, clones, rows), strict=True):
            frame.astype({"label": int}).to_parquet(below / f"{part}.parquet")
    file = folder / "config.yaml"
    file.write_text(json.dumps(configuration(name, below, seed, model)), encoding="utf-8")
    figures = in_new_process(run, str(file))
    if model != "ranking":
        return {model: figures["model"]}
    return {**figures, **{kind: in_new_process(fit_trees, kind, name, str(clones), rows, seed) for kind in _TREES}}


def table_of(results: dict[str, dict[str, Figures]]) -> str:
    """Return medians and ranges over the seeds as a Markdown table, the tables that were held back last."""
    lines = []
    for name, size in sorted({tuple(key.split("|")[:2]) for key in results}, key=lambda key: key[0] in HELD_BACK):
        runs = [found for key, found in results.items() if key.split("|")[:2] == [name, size]]
        for scorer in dict.fromkeys(itertools.chain(*runs)):
            figures = zip(*(found[scorer] for found in runs if scorer in found), strict=True)
            cells = [spread(values, digits) for values, digits in zip(figures, (4, 4, 0), strict=True)]
            lines.append([f"{name}, held back" if name in HELD_BACK else name, f"{int(size):,}", scorer, *cells])
    return table(["table", "rows", "model", "AUC", "log loss", "CPU s"], lines)


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
        key = f"{name}|{rows}|{seed}"
        if ("model" if model == "ranking" else model) not in results.get(key, {}):
            measured = measure(name, rows, given.folder, given.clones, seed, model)
            results[key] = {**results.get(key, {}), **measured}
            kept.write_text(json.dumps(results, indent=1), encoding="utf-8")
    show(table_of(results), given.into, "ranking defaults")


if __name__ == "__main__":
    main()

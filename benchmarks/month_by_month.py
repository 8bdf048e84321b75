"""Compares warm starts with cold starts on the Online Retail data, trained month by month.

    python -m benchmarks.month_by_month <folder with the daily *.csv.gz files> <working folder>

docs/benchmarks.md says what is trained and compared. Figures are kept in `results.json` of the working folder, and an
interrupted run continues from there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measuring import show, spread, table
from benchmarks.warm_runs import train_once, vocabularies_of, write_examples
from embedding_core.vocabulary import Vocabulary
from examples.online_retail.prepare_data import Purchase, prepare, read_purchases
from pipelines.config import PipelineConfig, load_config

EXAMPLE = Path(__file__).parents[1] / "examples" / "online_retail" / "online_retail.yaml"
WAYS = ("cold", "warm", "all")
HISTORY_LENGTH = 20  # the example has 100; 20 needs a fifth of the lookups, which are most of the work


class Month(NamedTuple):
    """The training rows and the evaluation pairs of one month.

    Attributes:
      name: "YYYY-MM".
      rows: the month's purchases, as `prepare` returns them.
      file: path of the rows as tf.Examples.
      pairs: path of the next month's pairs as tf.Examples.
      own: mask of the pairs whose customer and item both occur in this month, so that a cold start knows them.
    """

    name: str
    rows: pa.Table
    file: str
    pairs: str
    own: npt.NDArray[np.bool_]


def months_of(purchases: Sequence[Purchase], folder: Path) -> Iterator[Month]:
    """Yield every month but the last, in order, after writing its files."""
    names = sorted({purchase.date[:7] for purchase in purchases})
    for name, following in itertools.pairwise(names):
        known = [purchase for purchase in purchases if purchase.date[:7] <= following]
        train, pairs = prepare(known, first_evaluation_day=f"{following}-01", history_length=HISTORY_LENGTH)
        rows = train.filter(pc.equal(train["Period"], name))
        own = [
            pc.is_in(pairs[column], value_set=pc.unique(rows[column])).to_numpy()
            for column in ("CustomerID", "StockCode")
        ]
        files = [str(folder / f"{name}.{kind}.tfrecord") for kind in ("rows", "pairs")]
        for file, written in zip(files, (rows, pairs), strict=True):
            write_examples(written, file)
        yield Month(name=name, rows=rows, file=files[0], pairs=files[1], own=np.logical_and(*own))


class Plan(NamedTuple):
    """The vocabularies and months of one training run, which is evaluated on the pairs of the last of these months."""

    vocabularies: Mapping[str, Vocabulary]
    months: Sequence[Month]


class Bench:
    """Trains and evaluates, and keeps the figures in memory and in `results.json`."""

    def __init__(self, config: PipelineConfig, folder: Path) -> None:
        self._config, self._folder, self._results = config, folder, folder / "results.json"
        self.figures: dict[str, Any] = json.loads(self._results.read_text()) if self._results.exists() else {}

    def run(self, plan: Plan, way: str, seed: int, earlier: Path | None) -> Path:
        """Train and evaluate, unless that was done before; return the checkpoint, from which a "warm" run starts."""
        files, month = [month.file for month in plan.months], plan.months[-1]
        key, folder = f"{seed}/{month.name}/{way}", self._folder / str(seed) / month.name / way
        if key not in self.figures or not (folder / "checkpoint").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            given = {"files": files, "eval_file": month.pairs, "changes": {"seed": seed}}
            run = train_once(self._config, plan.vocabularies, folder, earlier if way == "warm" else None, **given)
            self.figures[key] = {"steps": run.step, **_judged(run.job, run.checkpoint, month)}
            shutil.rmtree(folder / "run")
            self._results.write_text(json.dumps(self.figures, indent=1))
            print(key, json.dumps(self.figures[key]), flush=True)
        return folder / "checkpoint"


def _judged(job: Any, checkpoint: str, month: Month) -> dict[str, float]:
    """Return the AUC over all pairs and over those of `month.own`, and the numbers of these pairs."""
    import tensorflow as tf

    from embedding_core.model_inputs import call_model
    from embedding_core.training.eval_metrics import auc
    from embedding_core.training.finished_run import restore_weights
    from embedding_core.training.training_inputs import RowParser

    engine, model = restore_weights(
        checkpoint, job.model, job.inputs.config, job.inputs.dense, job.arguments, job.inputs.tasks
    )
    parser, scores, labels = RowParser(job.inputs), [], []
    for serialized in tf.data.TFRecordDataset([month.pairs]).batch(8192):
        batch = parser(serialized)
        scores.append(call_model(model, engine.lookup(batch["ids"]), batch["dense"])["label"].numpy())
        labels.append(batch["label"].numpy())
    score, label = (np.concatenate(part).ravel().astype(np.float64) for part in (scores, labels))
    ones = np.ones_like(score)
    own = auc(label[month.own], score[month.own], ones[month.own])
    return {"auc": auc(label, score, ones), "auc_own": own, "pairs": len(score), "pairs_own": int(month.own.sum())}


def plans_of(config: PipelineConfig, months: Sequence[Month]) -> list[dict[str, Plan]]:
    """Return the plans of each month by way; the first month has only "cold", as there is nothing to start from."""
    plans: list[dict[str, Plan]] = []
    for number, month in enumerate(months, 1):
        cold = Plan(vocabularies=vocabularies_of(config, month.rows, None), months=[month])
        if not plans:
            plans.append({"cold": cold})
            continue
        before = plans[-1].get("warm", plans[-1]["cold"])
        so_far = pa.concat_tables([each.rows for each in months[:number]])
        warm = Plan(vocabularies=vocabularies_of(config, month.rows, before.vocabularies), months=[month])
        reference = Plan(vocabularies=vocabularies_of(config, so_far, None), months=months[:number])
        plans.append({"cold": cold, "warm": warm, "all": reference})
    return plans


def measure(bench: Bench, plans: Sequence[Mapping[str, Plan]], seed: int, ways: Sequence[str]) -> None:
    """Train and evaluate month after month; what was measured before is not measured again."""
    earlier: Path | None = None
    for plan in plans:
        checkpoints = {way: bench.run(plan[way], way, seed, earlier) for way in ways if way in plan}
        earlier = checkpoints.get("warm", checkpoints["cold"])


def table_of(figures: Mapping[str, Any]) -> str:
    """Return the figures as a Markdown table: means over the seeds, as medians and ranges over the months."""
    names = sorted({key.split("/")[1] for key in figures if key.endswith("/warm")})
    runs = {way: [_runs(figures, name, way) for name in names] for way in WAYS}
    aucs = {way: [statistics.mean(run["auc"] for run in of_month) for of_month in runs[way]] for way in WAYS}
    pairs = spread([of_month[0]["pairs"] for of_month in runs["cold"]], 0)
    return table(
        ["months", "pairs", "cold", "warm", "all so far"],
        [[str(len(names)), pairs, *(spread(aucs[way], 3) for way in WAYS)]],
    )


def _runs(figures: Mapping[str, Any], month: str, way: str) -> list[dict[str, float]]:
    return [value for key, value in sorted(figures.items()) if key.endswith(f"/{month}/{way}")]


def main() -> None:
    """Measure, print the table, and put it into a file if one is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with the daily *.csv.gz files")
    parser.add_argument("folder", type=Path, help="working folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--months", type=int, help="only the first so many")
    parser.add_argument("--into", type=Path, help="file that holds the marks, such as docs/benchmarks.md")
    given = parser.parse_args()
    (given.folder / "data").mkdir(parents=True, exist_ok=True)
    months = list(months_of(read_purchases(given.data), given.folder / "data"))[: given.months]
    config = load_config(EXAMPLE, [f"data={{path: {given.folder.absolute()}/data/*.tfrecord, format: tfrecord}}"])
    bench, plans = Bench(config, given.folder), plans_of(config, months)
    for seed in given.seeds:
        measure(bench, plans, seed, WAYS if seed == given.seeds[0] else WAYS[:2])  # "all" takes several times as long
    show(table_of(bench.figures), given.into, "months")


if __name__ == "__main__":
    main()

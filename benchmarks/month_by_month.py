"""Compares warm starts with cold starts on the Online Retail data, trained month by month.

    python -m benchmarks.month_by_month <folder with the daily *.csv.gz files> <working folder>

For each month, the two-tower example (`examples/online_retail`: model, tables, optimizer, epochs) is trained on that
month's purchases and evaluated on the next month's, by the example's protocol. Each purchase whose customer and item
occur in the months so far is a positive pair, and the same customer with an item drawn from those months is a negative
pair. The metric is AUC over all pairs. The three ways to train are:

* cold: on that month alone, with its own vocabularies and initial rows;
* warm: on the same rows in the same number of steps, with vocabularies that evolve (rerank, no token expires) and the
  rows and slots of the previous month, remapped by token;
* all: on all months so far, from initial rows: the goal for a warm start, at a multiple of the steps.

A history holds only the latest 20 items, to save time. Vocabularies, histories and drawn items come from the months so
far, so that nothing from the future is used. Figures are kept in `results.json` of the working folder, and an
interrupted run continues from there. `--into FILE` puts the table between the marks of FILE.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.marked_pages import write_between
from embedding_core.config import EmbeddingConfig
from embedding_core.planning.planner import plan_tables
from embedding_core.vocabulary import Vocabulary, evolved_vocabulary, save_vocabulary, vocabulary_from_counts
from examples.online_retail.prepare_data import Purchase, prepare, read_purchases
from pipelines.config import PipelineConfig, load_config
from pipelines.pipeline import component_inputs

EXAMPLE = Path(__file__).parents[1] / "examples" / "online_retail" / "online_retail.yaml"
WAYS = ("cold", "warm", "all")
HISTORY_LENGTH = 20  # the example has 100; 20 needs a fifth of the lookups, which are most of the work


@dataclasses.dataclass(frozen=True, kw_only=True)
class Month:
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
        for file, table in zip(files, (rows, pairs), strict=True):
            write_examples(table, file)
        yield Month(name=name, rows=rows, file=files[0], pairs=files[1], own=np.logical_and(*own))


def write_examples(table: pa.Table, path: str) -> None:
    """Write the rows as tf.Examples, without the column `split`."""
    import tensorflow as tf

    columns = {name: table[name].to_pylist() for name in table.column_names if name != "split"}
    with tf.io.TFRecordWriter(path) as writer:
        for row in range(table.num_rows):
            message = tf.train.Example()
            for name, values in columns.items():
                value, feature = values[row], message.features.feature[name]
                if isinstance(value, int):
                    feature.int64_list.value.append(value)
                else:
                    feature.bytes_list.value.append(value.encode())
            writer.write(message.SerializeToString())


def values_of(rows: pa.Table, column: Mapping[str, Any]) -> pa.Array:
    """Return the values of a feature's column, split into tokens if it has a separator."""
    values = rows[column["name"]].combine_chunks()
    return pc.split_pattern(values, column["separator"]).flatten() if column["separator"] else values


def token_counts(values: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the distinct tokens that are not empty, and the count of each."""
    counted = pc.value_counts(values.filter(pc.not_equal(values, "")))
    return counted.field("values").cast(pa.large_binary()), counted.field("counts").to_numpy()


def vocabularies_of(
    config: PipelineConfig, rows: pa.Table, base: Mapping[str, Vocabulary] | None
) -> dict[str, Vocabulary]:
    """Return the vocabularies of the rows, evolved from `base` if it is not None."""
    found = {}
    for feature in component_inputs.vocabulary_features(config):
        name, counted = feature["vocabulary"], token_counts(values_of(rows, feature["column"]))
        if base is None:
            found[name] = vocabulary_from_counts(name, *counted)
        else:
            found[name] = evolved_vocabulary(base[name], *counted, mode="rerank")
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The vocabularies and months of one training run, which is evaluated on the pairs of the last of these months."""

    vocabularies: Mapping[str, Vocabulary]
    months: Sequence[Month]


class Bench:
    """Trains and evaluates, and keeps the figures in memory and in `results.json`."""

    def __init__(self, config: PipelineConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._results = folder / "results.json"
        self.figures: dict[str, Any] = json.loads(self._results.read_text()) if self._results.exists() else {}

    def folder_of(self, month: Month, way: str, seed: int) -> Path:
        """Return the folder in which a training run writes its `checkpoint`."""
        return self._folder / str(seed) / month.name / way

    def run(self, plan: Plan, way: str, seed: int, earlier: Path | None) -> None:
        """Train and evaluate, unless that was done before; "warm" starts from the checkpoint `earlier`."""
        month = plan.months[-1]
        key, folder = f"{seed}/{month.name}/{way}", self.folder_of(month, way, seed)
        if key in self.figures and (folder / "checkpoint").exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        begun = time.monotonic()
        found = self._trained(folder, plan, seed, earlier if way == "warm" else None)
        self.figures[key] = {**found, "seconds": round(time.monotonic() - begun, 1)}
        self._results.write_text(json.dumps(self.figures, indent=1))
        print(key, json.dumps(self.figures[key]), flush=True)

    def _trained(self, folder: Path, plan: Plan, seed: int, earlier: Path | None) -> dict[str, Any]:
        from embedding_core.checkpoint import load_checkpoint_into, remap, retrieve
        from embedding_core.training import TrainingJob, train

        vocabularies = plan.vocabularies
        tables, inputs = self._inputs(folder, vocabularies)
        figures: dict[str, Any] = {}

        def warm_start(variables: Mapping[str, Any]) -> None:
            assert earlier is not None
            _, report = remap(earlier, tables, vocabularies, folder / "start")
            digests = {name: vocabulary.digest for name, vocabulary in vocabularies.items()}
            load_checkpoint_into(folder / "start", variables, tables, vocabulary_digests=digests)
            figures["kept_traffic"] = {name: round(one["kept_traffic"], 4) for name, one in report["tables"].items()}

        job = TrainingJob(
            inputs=inputs,
            training=self._training(seed),
            model=self._config.model.module,
            arguments=dict(self._config.model.arguments),
            train_files=[month.file for month in plan.months],
            eval_files=[plan.months[-1].pairs],
            warm_start=None if earlier is None else warm_start,
        )
        result = train(job, str(folder / "run"))
        retrieve(result.checkpoint, tables, folder / "checkpoint", vocabularies=vocabularies)
        figures |= {"steps": result.step, **_judged(job, result.checkpoint, plan.months[-1])}
        shutil.rmtree(folder / "run")
        shutil.rmtree(folder / "start", ignore_errors=True)
        return figures

    def _training(self, seed: int) -> Any:
        from embedding_core.training import TrainingConfig

        said = component_inputs.training_config(self._config)
        return TrainingConfig.from_mapping(said).replace(seed=seed, eval_every=10**9)

    def _inputs(self, folder: Path, vocabularies: Mapping[str, Vocabulary]) -> tuple[EmbeddingConfig, Any]:
        import tensorflow as tf

        from embedding_core.training import Inputs

        features = component_inputs.vocabulary_features(self._config)
        sizes = {name: len(vocabulary) for name, vocabulary in vocabularies.items()}
        tables = plan_tables(features, sizes, overrides=component_inputs.table_overrides(self._config))
        for vocabulary in vocabularies.values():
            save_vocabulary(vocabulary, folder)
        files = {name: os.path.join(folder, f"{name}.txt") for name in vocabularies}
        label = {"label": tf.io.FixedLenFeature([], tf.int64)}
        return tables, Inputs(config=tables, vocabularies=files, raw_spec=label)


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
        for way in ways if "warm" in plan else ("cold",):
            bench.run(plan[way], way, seed, earlier)
        earlier = bench.folder_of(plan["cold"].months[-1], "warm" if "warm" in plan else "cold", seed) / "checkpoint"


def table_of(figures: Mapping[str, Any]) -> str:
    """Return the figures as a Markdown table: means over the seeds for each month, and their means over the months."""
    names = sorted({key.split("/")[1] for key in figures if key.endswith("/warm")})
    lines = [
        (
            "| trained on | pairs of the next month | cold | warm | warm - cold (each seed) | all so far | warm - all "
            "| pairs of the month's own | cold | warm | all so far |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [_row(name, figures) for name in names]
    for name, row in zip(names, rows, strict=True):
        lines.append(_line(name, row))
    mean = {key: statistics.mean(row[key] for row in rows) for key in rows[0] if key != "each"}
    each = [statistics.mean(values) for values in zip(*(row["each"] for row in rows), strict=True)]
    return "\n".join([*lines, _line(f"mean of {len(rows)} months", {**mean, "each": each}, bold=True)]) + "\n"


def _row(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    found = {way: [value for key, value in sorted(figures.items()) if key.endswith(f"/{name}/{way}")] for way in WAYS}
    row: dict[str, Any] = {"pairs": found["cold"][0]["pairs"], "pairs_own": found["cold"][0]["pairs_own"]}
    for way, runs in found.items():
        for key in ("auc", "auc_own"):
            row[f"{way}_{key}"] = statistics.mean(run[key] for run in runs)
    row["each"] = [warm["auc"] - cold["auc"] for warm, cold in zip(found["warm"], found["cold"], strict=True)]
    return row


def _line(name: str, row: Mapping[str, Any], *, bold: bool = False) -> str:
    each = ", ".join(f"{difference:+.3f}" for difference in row["each"])
    cells = [
        f"{row['pairs']:,.0f}",
        *(f"{row[f'{way}_auc']:.3f}" for way in ("cold", "warm")),
        f"{row['warm_auc'] - row['cold_auc']:+.3f} ({each})",
        f"{row['all_auc']:.3f}",
        f"{row['warm_auc'] - row['all_auc']:+.3f}",
        f"{row['pairs_own']:,.0f}",
        *(f"{row[f'{way}_auc_own']:.3f}" for way in WAYS),
    ]
    return "| " + " | ".join(f"**{cell}**" if bold else cell for cell in (name, *cells)) + " |"


def main() -> None:
    """Measure, print the table, and put it into a file if one is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with the daily *.csv.gz files")
    parser.add_argument("folder", type=Path, help="working folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument(
        "--reference-seeds", type=int, nargs="+", default=[1], help="seeds of all months so far; default: 1"
    )
    parser.add_argument("--months", type=int, help="only the first so many")
    parser.add_argument("--into", type=Path, help="file that holds the marks, such as docs/benchmarks.md")
    given = parser.parse_args()
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    (given.folder / "data").mkdir(parents=True, exist_ok=True)
    months = list(months_of(read_purchases(given.data), given.folder / "data"))[: given.months]
    config = load_config(EXAMPLE, [f"data={{path: {given.folder.absolute()}/data/*.tfrecord, format: tfrecord}}"])
    bench, plans = Bench(config, given.folder), plans_of(config, months)
    for seed in given.seeds:
        measure(bench, plans, seed, WAYS if seed in given.reference_seeds else WAYS[:2])
    table = table_of(bench.figures)
    print(table)
    if given.into:
        write_between(given.into, "months", table)


if __name__ == "__main__":
    main()

"""Trains chains of daily runs for the trial of the health gate: a first run on many days, then one run per day.

Every run extends the vocabularies of the run before and starts from its rows, slots and dense weights, as
`warm_start: pushed` does; it leaves an embedding checkpoint. A chain is one of:

* retail: Online Retail, the configuration of `examples/online_retail/daily_runs.yaml` (Adam, drawn negatives): the
  first run reads a month, each later run a day of the next month;
* taxi: the categorical columns of the taxi example (its model and optimizer) in the order of time: the first run reads
  5,000 trips, each later run 500;
* made-up: two columns whose labels depend on hidden vectors, with 500 tokens that come and go (SGD in one table,
  Adagrad in the other).
"""

import csv
import itertools
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.warm_runs import train_once, vocabularies_of, write_examples
from examples.online_retail.prepare_data import distinct, prepare
from pipelines.config import PipelineConfig, config_from_mapping, load_config

RETAIL = Path(__file__).parents[3] / "examples" / "online_retail" / "daily_runs.yaml"
_TAXI_COLUMNS = ("company", "pickup_community_area", "dropoff_community_area", "dropoff_census_tract", "payment_type")
_TAXI_FIRST, _TAXI_LATER = 5_000, 500


class Chain(NamedTuple):
    """The data of a chain of runs, and how each run trains.

    Attributes:
      name: name of the chain, also of its folder.
      config: features, tables, model and training.
      days: name and rows of each run, the first run first.
    """

    name: str
    config: PipelineConfig
    days: list[tuple[str, pa.Table]]


def retail_chain(folder, purchases, first_month, month):
    """Return the chain of a month of Online Retail, after a first run on `first_month`."""
    following = min(purchase.date[:10] for purchase in purchases if purchase.date[:7] > month)
    known = [purchase for purchase in purchases if first_month <= purchase.date[:7] and purchase.date[:10] <= following]
    rows, _ = prepare(known, first_evaluation_day=following, history_length=20)
    ordered = distinct(purchase for purchase in known if purchase.date[:7] <= month)
    dates = np.array([purchase.date[:10] if purchase.date[:7] == month else first_month for purchase in ordered])
    tables = [(day, rows.filter(pa.array(dates == day))) for day in sorted(set(dates.tolist()))]
    name = f"retail-{month}"
    data = _write_days(folder / name, tables)
    return Chain(name, load_config(RETAIL, [f"data={{path: {data}, format: tfrecord}}"]), tables)


def taxi_chain(folder):
    """Return the chain of the taxi trips, in the order of time."""
    import importlib.util

    path = Path(importlib.util.find_spec("tfx").origin).parent / "examples/chicago_taxi_pipeline/data/simple/data.csv"
    with path.open(encoding="utf-8") as file:
        trips = sorted(csv.DictReader(file), key=lambda row: int(row["trip_start_timestamp"]))
    columns = {name: [trip[name] for trip in trips] for name in _TAXI_COLUMNS}
    columns["label"] = [int(float(trip["tips"] or 0) > 0.2 * float(trip["fare"] or 0)) for trip in trips]
    table = pa.table(columns)
    starts = [0, *range(_TAXI_FIRST, len(trips), _TAXI_LATER)]
    parts = [(f"{start:05d}", table.slice(start, end - start)) for start, end in itertools.pairwise(starts)]
    areas = {f"{end}_community_area": {"vocabulary": "community_area"} for end in ("pickup", "dropoff")}
    features = [{"name": name, **areas.get(name, {})} for name in _TAXI_COLUMNS]
    training = {"epochs": 8, "batch_size": 256, "early_stopping": None}
    tables = {areas.get(name, {"vocabulary": name})["vocabulary"]: {"dim": 16} for name in _TAXI_COLUMNS}
    return Chain("taxi", _config(_write_days(folder / "taxi", parts), features, tables, training), parts)


def made_up_chain(folder, seed=1, runs=10):
    """Return a chain of drawn rows: 500 items, of which a tenth changes from day to day, and 400 users."""
    chance = np.random.default_rng(seed)
    users, items = chance.normal(size=(400, 4)), chance.normal(size=(500 + 50 * runs, 4))
    days = []
    for day in range(runs + 1):
        count = 8_000 if day == 0 else 800
        user = (400 * chance.power(0.4, count)).astype(int)
        item = 50 * day + (500 * chance.power(0.5, count)).astype(int)
        label = ((users[user] * items[item]).sum(1) + chance.normal(size=count) > 0).astype(int)
        columns = {
            "user": [f"u{number}" for number in user],
            "item": [f"i{number}" for number in item],
            "label": label.tolist(),
        }
        days.append((f"day{day:02d}", pa.table(columns)))
    tables = {
        "user": {"dim": 16, "optimizer": {"name": "sgd", "learning_rate": 0.2}},
        "item": {"dim": 16, "optimizer": {"name": "adagrad", "learning_rate": 0.1}},
    }
    training = {"epochs": 3, "batch_size": 64, "early_stopping": None}
    features = [{"name": "user", "private": True}, {"name": "item"}]
    name = f"made-up-{seed}"
    return Chain(name, _config(_write_days(folder / name, days), features, tables, training), days)


def _write_days(folder, days):
    """Write the rows of each day as tf.Examples, unless they are written; return the pattern of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in days:
        if not (folder / f"{name}.tfrecord").exists():
            write_examples(rows, str(folder / f"{name}.tfrecord"))
    return folder.absolute() / "*.tfrecord"


def _config(data, features, tables, training):
    given = {
        "name": "chain",
        "data": {"path": str(data), "format": "tfrecord"},
        "label": "label",
        "features": {"categorical": features},
        "tables": tables,
        "training": training,
    }
    return config_from_mapping(given)


def trained(chain, folder):
    """Train the runs of a chain in order; yield the name and the checkpoint of each. Finished runs are kept."""
    earlier = vocabularies = None
    for name, rows in chain.days:
        work = folder / chain.name / name
        vocabularies = vocabularies_of(chain.config, rows, vocabularies)
        if not (work / "checkpoint").exists():
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            file = str(folder / chain.name / f"{name}.tfrecord")
            given = {"files": [file], "eval_file": file, "changes": {}, "with_dense": True}
            train_once(chain.config, vocabularies, work, earlier, **given)
            shutil.rmtree(work / "run")
        earlier = work / "checkpoint"
        yield name, earlier

"""Measures what freshness is worth: the AUC on a month's purchases, by how often the served tables are replaced.

    python -m benchmarks.sync_interval <folder with the daily *.csv.gz files of Online Retail> [--seeds 0 1 2]

One model learns from purchases in the order of time: first those from --first-month on in several passes, then the last
month minute by minute, one step per minute. Copies of its tables emulate what is served: replaced each minute, each
hour, each day, or not at all in that month. Every purchase is scored by each copy as it was just before its minute, and
so is a purchase, by the same customer, of an item drawn from those known by then. The AUC compares the two. What a
customer bought before is an input of the model, known up to the previous invoice in all cases: only the tables differ.

Columns: all purchases; those within ten minutes and within an hour after the shop's first purchase of a day, and later
ones; and purchases whose customer or item was first seen on that day, which a table of yesterday does not know.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import os
import pathlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import numpy.typing as npt

from benchmarks.marked_pages import write_between
from examples.online_retail.prepare_data import Purchase, distinct, read_purchases

DIM, BATCH, NEGATIVES, EPOCHS, HISTORY = 32, 256, 4, 3, 20
INTERVALS = {"minute": 16, "hour": 13, "day": 10, "month": 7}  # characters of "YYYY-MM-DD hh:mm" that name the interval

Ids: TypeAlias = npt.NDArray[np.int64]
Tables: TypeAlias = Mapping[str, npt.NDArray[np.float32]]


@dataclasses.dataclass(frozen=True)
class Events:
    """Purchases in the order of time.

    Attributes:
      minutes: "YYYY-MM-DD hh:mm" of each.
      customers, items: ids in the order of first appearance.
      histories: int64 [events, HISTORY], the latest items of the customer's previous invoices; -1 where there is none.
      known: number of items that appeared before the event's minute.
      is_new: whether the customer or the item first appeared on the same day.
    """

    minutes: Sequence[str]
    customers: Ids
    items: Ids
    histories: Ids
    known: Ids
    is_new: npt.NDArray[np.bool_]


def events_of(purchases: Sequence[Purchase]) -> Events:
    """Bring purchases into the order of time, with ids and histories."""
    ordered = sorted(distinct(purchases), key=lambda one: (one.date, one.invoice))
    customers: dict[str, int] = {}
    items: dict[str, int] = {}
    first_day: dict[tuple[str, int], str] = {}
    bought: dict[int, dict[int, None]] = collections.defaultdict(dict)
    rows: list[tuple[str, int, int, list[int], int, bool]] = []
    for minute, group in itertools.groupby(ordered, key=lambda one: one.date[:16]):
        known = len(items)
        for _, invoice in itertools.groupby(group, key=lambda one: one.invoice):
            lines = list(invoice)
            customer = customers.setdefault(lines[0].customer, len(customers))
            history = list(reversed(bought[customer]))[:HISTORY]
            history += [-1] * (HISTORY - len(history))
            for line in lines:
                item = items.setdefault(line.item, len(items))
                day = minute[:10]
                seen = [first_day.setdefault(("customer", customer), day), first_day.setdefault(("item", item), day)]
                rows.append((minute, customer, item, history, known, day in seen))
                bought[customer].pop(item, None)
                bought[customer][item] = None
    minutes, *columns = zip(*rows, strict=True)
    return Events(list(minutes), *(np.array(column) for column in columns))


class Model:
    """Scores (customer + mean of history) . item + bias of the item; its tables are trained by the host engine."""

    def __init__(self, customers: int, items: int, seed: int) -> None:
        """Make the tables; `seed` seeds the initial rows."""
        import tensorflow as tf

        from embedding_core import Adam, EmbeddingConfig, FeatureConfig, InitializerConfig, TableConfig
        from embedding_core.engines import HostEngine

        start = InitializerConfig(scale=0.05)
        rows = {"customer": (customers, DIM), "history": (items, DIM), "item": (items, DIM), "bias": (items, 1)}
        tables = [
            TableConfig(name=name, vocabulary_size=count, dim=dim, combiner="mean", initializer=start)
            for name, (count, dim) in rows.items()
        ]
        features = [FeatureConfig(name=name, table=name, invalid_id="drop") for name in rows]
        config = EmbeddingConfig(tables=tuple(tables), features=tuple(features))
        self._engine = HostEngine(config, optimizer=Adam(learning_rate=0.002), seed=seed)

        @tf.function(reduce_retracing=True)
        def step(customers: Any, histories: Any, items: Any, labels: Any) -> None:
            ids = {"customer": customers, "history": histories, "item": items, "bias": items}
            vectors = self._engine.lookup(ids)
            with tf.GradientTape() as tape:
                tape.watch(vectors)
                query = vectors["customer"] + vectors["history"]
                logits = tf.reduce_sum(query * vectors["item"], 1) + vectors["bias"][:, 0]
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
            self._engine.apply_gradients(ids, tape.gradient(loss, vectors))

        self._step: Callable[..., None] = step

    def train(self, events: Events, places: Ids, chance: np.random.Generator) -> None:
        """Take one step on some events, with drawn items as negatives."""
        import tensorflow as tf

        drawn = chance.integers(0, np.maximum(events.known[places], 1), (NEGATIVES, len(places)))
        items = np.concatenate([events.items[places], drawn.ravel()])
        labels = np.repeat([1.0, 0.0], [len(places), drawn.size]).astype(np.float32)
        several = np.tile(places, 1 + NEGATIVES)
        histories = tf.RaggedTensor.from_tensor(events.histories[several], padding=-1)
        self._step(tf.constant(events.customers[several]), histories, tf.constant(items), tf.constant(labels))

    def tables(self) -> Tables:
        """Copy the tables."""
        return {name: value.numpy() for name, value in self._engine.embedding_tables.items()}


def scores(tables: Tables, events: Events, places: Ids, items: Ids) -> npt.NDArray[np.float64]:
    """Score items for the customers and histories of some events."""
    histories = events.histories[places]
    there = (histories >= 0)[..., None]
    history = (tables["history"][np.maximum(histories, 0)] * there).sum(1) / np.maximum(there.sum(1), 1)
    query = tables["customer"][events.customers[places]] + history
    return np.asarray((query * tables["item"][items]).sum(1) + tables["bias"][items][:, 0], np.float64)


def _groups(minutes: Sequence[str], begin: int) -> Iterator[Ids]:
    """Yield the places of the events of each minute, from place `begin` on."""
    for _, group in itertools.groupby(range(begin, len(minutes)), key=minutes.__getitem__):
        yield np.fromiter(group, np.int64)


def measure(events: Events, month: str, seed: int) -> dict[str, dict[str, float]]:
    """Train, and return the AUC of each interval in each column.

    Args:
      events: all purchases.
      month: "YYYY-MM", the last month: it is scored.
      seed: seed of initial rows, order and drawn items.
    """
    from sklearn.metrics import roc_auc_score

    chance = np.random.default_rng(seed)
    model = Model(int(events.customers.max()) + 1, int(events.items.max()) + 1, seed)
    begin = next(place for place, minute in enumerate(events.minutes) if minute[:7] >= month)
    for _ in range(EPOCHS):
        order = chance.permutation(begin)
        for batch in range(0, begin - BATCH + 1, BATCH):
            model.train(events, order[batch : batch + BATCH], chance)
    served: dict[str, Tables] = {}
    current: dict[str, str] = {}
    found: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in INTERVALS}
    for places in _groups(events.minutes, begin):
        minute = events.minutes[places[0]]
        drawn = chance.integers(0, events.known[places])
        newest = model.tables()
        for name, length in INTERVALS.items():
            if current.get(name) != minute[:length]:
                current[name], served[name] = minute[:length], newest
            pair = [scores(served[name], events, places, items) for items in (events.items[places], drawn)]
            found[name].append(np.stack(pair))
        model.train(events, places, chance)
    masks = _columns(events, begin)
    return {
        name: {
            column: float(roc_auc_score(np.repeat([1, 0], mask.sum()), np.concatenate(parts, 1)[:, mask].ravel()))
            for column, mask in masks.items()
        }
        for name, parts in found.items()
    }


def _columns(events: Events, begin: int) -> dict[str, npt.NDArray[np.bool_]]:
    """Return the scored events of each column."""
    opening: dict[str, int] = {}
    since = []
    for minute in events.minutes[begin:]:
        at = int(minute[11:13]) * 60 + int(minute[14:16])
        since.append(at - opening.setdefault(minute[:10], at))
    after = np.array(since)
    return {
        "all": np.ones(len(after), bool),
        "first 10 minutes": after < 10,
        "first hour": after < 60,
        "later in the day": after >= 60,
        "new that day": events.is_new[begin:],
    }


def table_of(results: Sequence[Mapping[str, Mapping[str, float]]], counts: Mapping[str, int]) -> str:
    """Return a Markdown table: mean over the seeds, with the range."""
    columns = list(counts)
    lines = [
        "| tables replaced each | " + " | ".join(f"{one} ({counts[one]:,})" for one in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for name in INTERVALS:
        cells = []
        for column in columns:
            values = [result[name][column] for result in results]
            cells.append(f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure with each seed, and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.sync_interval", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=pathlib.Path, help="folder with the daily *.csv.gz files")
    parser.add_argument("--first-month", default="2011-06", help="default: %(default)s")
    parser.add_argument("--month", default="2011-11", help="the month that is scored; default: %(default)s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--into", type=pathlib.Path, help="page with the marks of the table `sync interval`")
    given = parser.parse_args(arguments)
    chosen = [one for one in read_purchases(given.source) if given.first_month <= one.date[:7] <= given.month]
    events = events_of(chosen)
    begin = next(place for place, minute in enumerate(events.minutes) if minute[:7] >= given.month)
    counts = {name: int(mask.sum()) for name, mask in _columns(events, begin).items()}
    text = table_of([measure(events, given.month, seed) for seed in given.seeds], counts)
    print(text)
    if given.into:
        write_between(given.into, "sync interval", text)


if __name__ == "__main__":
    main()

"""Measures how long it takes from an event to an answer that knows it, with `follow`.

    python -m benchmarks.follow_latency <folder with the daily *.csv.gz files of Online Retail> <working folder>

October 2011 is the first span, and trains the first version. Then purchases of November are replayed: --minutes minutes
of the shop's time are one span, which is written every --seconds seconds. `follow` runs in this process; after each of
its runs, this process loads the version and asks it for an answer, as a server would. An event happens at its place
inside the time of its span. Its latency ends with the first answer of a version that was trained on its span.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from examples.online_retail.prepare_data import Purchase, distinct, prepare, read_purchases
from pipelines.config import load_config

CONFIG = pathlib.Path(__file__).parents[1] / "examples" / "online_retail" / "daily_runs.yaml"
FIRST, MONTH = "2011-10", "2011-11"
_HISTORY = 20


@dataclasses.dataclass(frozen=True)
class Span:
    """The purchases of some minutes, and when each happened.

    Attributes:
      rows: for training and, in split "eval", pairs.
      places: of each purchase, its time as a share of the span.
    """

    rows: pa.Table
    places: Sequence[float]


def spans_of(purchases: Sequence[Purchase], minutes: int, count: int) -> Iterator[Span]:
    """Yield October as the first span, then so many spans with purchases of November."""
    known = distinct(purchase for purchase in purchases if FIRST <= purchase.date[:7] <= MONTH)
    yield Span(_rows(known, None, f"{MONTH}-01"), ())
    november = [purchase for purchase in known if purchase.date[:7] == MONTH]
    groups: dict[datetime.datetime, list[Purchase]] = {}
    for purchase in november:
        at = datetime.datetime.fromisoformat(purchase.date)
        groups.setdefault(at - datetime.timedelta(minutes=at.minute % minutes, seconds=at.second), []).append(purchase)
    for begin in sorted(groups)[:count]:
        end = begin + datetime.timedelta(minutes=minutes)
        seconds = [
            (datetime.datetime.fromisoformat(purchase.date) - begin).total_seconds() for purchase in groups[begin]
        ]
        yield Span(_rows(known, begin, str(end)), [second / (60 * minutes) for second in seconds])


def _rows(known: Sequence[Purchase], begin: datetime.datetime | None, end: str) -> pa.Table:
    """Return the training rows from `begin` to `end`, and up to 100 pairs of the purchases that follow."""
    following = [purchase for purchase in known if purchase.date >= end][:200]
    train, pairs = prepare(
        [*(purchase for purchase in known if purchase.date < end), *following],
        first_evaluation_day=end,
        history_length=_HISTORY,
    )
    if begin is not None:
        inside = pa.array([purchase.date >= str(begin) for purchase in known if purchase.date < end])
        train = train.filter(inside)
    return pa.concat_tables([train, pairs])


def write(folder: pathlib.Path, number: int, rows: pa.Table) -> None:
    """Write the file of a span under a hidden name, and rename it."""
    hidden = folder / f".{number}.parquet"
    pa.parquet.write_table(rows, hidden)
    os.replace(hidden, folder / f"{number}.parquet")


def measure(spans: Sequence[Span], folder: pathlib.Path, seconds: float, overrides: Sequence[str]) -> list[float]:
    """Replay the spans, and return the latency of each event in seconds."""
    from pipelines.console.quiet import load_tensorflow, silence

    silence()
    load_tensorflow()
    import tensorflow as tf

    from pipelines.local.following import follow
    from pipelines.previous.trained_data import trained_spans

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "spans").mkdir(parents=True)
    given = [f"data.path={folder}/spans/{{SPAN}}.parquet", f"work_dir={folder}/work", "split.eval=[eval]"]
    write(folder / "spans", 0, spans[0].rows)  # the configuration must find it
    config = load_config(CONFIG, [*given, "follow.poll_seconds=0.5", *overrides])
    written: dict[int, float] = {}
    for _ in follow(config, runs=1):
        pass

    def replay() -> None:
        for number, span in enumerate(spans[1:], start=1):
            time.sleep(seconds)
            write(folder / "spans", number, span.rows)
            written[number] = time.monotonic()

    writer = threading.Thread(target=replay, daemon=True)
    writer.start()
    latencies: list[float] = []
    known = trained_spans(config).files.keys()
    for result, _ in follow(config):
        if not result.pushed:
            print(f"nothing was pushed: {result.reason}", flush=True)
            continue
        model = tf.saved_model.load(os.path.join(config.push_destination, result.version))
        model.signatures["serving_default"](examples=tf.constant([b""])[:0])
        answered = time.monotonic()
        trained = trained_spans(config).files.keys()
        for number in sorted(int(token) for token in trained - known):
            begin = written[number] - seconds
            latencies += [answered - (begin + place * seconds) for place in spans[number].places]
        known = trained
        print(
            f"span {max(known)} is served; {len(latencies)} events, p95 {np.percentile(latencies, 95):.1f} s",
            flush=True,
        )
        if len(known) == len(spans):
            return latencies
    return latencies


def main() -> None:
    """Measure, and print the percentiles."""
    parser = argparse.ArgumentParser(prog="benchmarks.follow_latency", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=pathlib.Path, help="folder with the daily *.csv.gz files")
    parser.add_argument("folder", type=pathlib.Path, help="it is emptied first")
    parser.add_argument("--seconds", type=float, default=15.0, help="from span to span; default: %(default)s")
    parser.add_argument("--minutes", type=int, default=15, help="of the shop's time per span; default: %(default)s")
    parser.add_argument("--spans", type=int, default=40, help="number of spans to replay; default: %(default)s")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    spans = list(spans_of(read_purchases(given.source), given.minutes, given.spans))
    latencies = measure(spans, given.folder.resolve(), given.seconds, given.overrides)
    figures = ", ".join(f"p{percent} {np.percentile(latencies, percent):.1f} s" for percent in (50, 95, 99))
    replayed = f"{len(latencies)} events in {len(spans) - 1} spans of {given.seconds:g} s"
    print(f"{replayed}: {figures}, at most {max(latencies):.1f} s")


if __name__ == "__main__":
    main()

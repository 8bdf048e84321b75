"""Runs the pipeline once per day for a month of Online Retail, each run starting from the previous one.

    python examples/online_retail/daily_runs.py <folder with the *.csv.gz files> [<output folder>]

The first run reads a month of purchases as one span, so that later runs have a model to start from. Every later run
reads one day, starts from the tables of the previous run, remapped by token, and extends that run's vocabularies. A run
is evaluated by the AUC over the next day's purchases of known items by known customers, and as many drawn pairs. Days
that have been run are skipped. At the end `lineage.html` shows what the newest model was made of, day by day.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from prepare_data import Purchase, distinct, prepare, read_purchases

FIRST_MONTH, MONTH = "2011-09", "2011-10"
CONFIG = Path(__file__).with_name("daily_runs.yaml")
_HISTORY_LENGTH = 20


def days_of(purchases: Sequence[Purchase], first_month: str, month: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each span: the first month, dated with its last day, then each day until `month` ends.

    Args:
      purchases: those of the two months and of the first day after them are used.
      first_month: "YYYY-MM".
      month: "YYYY-MM".

    Yields:
      The day, "YYYY-MM-DD", and its rows: purchases with split "train", and the evaluation pairs of the next day with
      split "pairs of <day>", which hold only what is known in the evening of the day.
    """
    known = distinct(purchase for purchase in purchases if purchase.date[:7] >= first_month)
    dates = sorted({purchase.date[:10] for purchase in known})
    last = max(date for date in dates if date[:7] == first_month)
    for day, following in itertools.pairwise(dates):
        if day < last or day[:7] > month:
            continue
        until_next = [purchase for purchase in known if purchase.date[:10] <= following]
        train, pairs = prepare(until_next, first_evaluation_day=following, history_length=_HISTORY_LENGTH)
        days = pa.array([purchase.date[:10] for purchase in until_next if purchase.date[:10] < following])
        rows = train if day == last else train.filter(pc.equal(days, day))
        name = pa.array([f"pairs of {day}"] * pairs.num_rows)
        yield day, pa.concat_tables([rows, pairs.set_column(pairs.schema.get_field_index("split"), "split", name)])


def write_days(purchases: Sequence[Purchase], folder: Path, first_month: str, month: str) -> list[str]:
    """Write `<day>.parquet` for every day that has no file yet; return all days."""
    folder.mkdir(parents=True, exist_ok=True)
    days = []
    for day, rows in days_of(purchases, first_month, month):
        days.append(day)
        path = folder / f"{day}.parquet"
        if not path.exists():
            pa.parquet.write_table(rows, f"{path}.new")
            os.replace(f"{path}.new", path)
    return days


def overrides_of(day: str, *, is_first: bool, window: int = 1) -> list[str]:
    """Return the settings that differ from run to run, as `--set` takes them.

    Args:
      day: the newest day to read.
      is_first: whether this is the first run, which reads one span.
      window: number of days to read, the newest included.
    """
    first = datetime.date.fromisoformat(day) - datetime.timedelta(days=0 if is_first else window - 1)
    given = [f"data.spans.first={first}", f"data.spans.last={day}", f'split.eval=["pairs of {day}"]']
    return given if window == 1 else [*given, "warm_start.repeated_data=train"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare the days, run those that have not been run, and write the lineage page."""
    given = _arguments(arguments)
    from pipelines.commands import lineage_command
    from pipelines.config import load_config
    from pipelines.console.quiet import load_tensorflow, silence
    from pipelines.local import run_local

    silence()
    data, work = (given.folder.resolve() / name for name in ("online_retail_days", "online_retail_daily"))
    days = write_days(read_purchases(given.source), data, given.first_month, given.month)
    everywhere = [f"data.path={data}/{{YYYY}}-{{MM}}-{{DD}}.parquet", f"work_dir={work}", *given.overrides]
    done = work / "days.json"
    ran: list[str] = json.loads(done.read_text()) if done.exists() else []
    load_tensorflow()
    for number, day in enumerate(days[: given.days]):
        if day in ran:
            continue
        changed = overrides_of(day, is_first=number == 0, window=given.window)
        run_local.run(load_config(CONFIG, [*everywhere, *changed]))
        ran.append(day)
        done.write_text(json.dumps(ran))
    lineage_command.show(str(CONFIG), everywhere, html=str(work / "lineage.html"))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="daily_runs.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="folder with the daily *.csv.gz files")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="default: %(default)s")
    parser.add_argument("--first-month", default=FIRST_MONTH, help="read as one span; default: %(default)s")
    parser.add_argument("--month", default=MONTH, help="run day by day; default: %(default)s")
    parser.add_argument("--window", type=int, default=1, help="days that a run reads; default: %(default)s")
    parser.add_argument("--days", type=int, help="runs at most, the first one included; default: all")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

"""Turns the Online Retail files into training purchases and evaluation pairs.

The data is UCI Online Retail (Daqing Chen, 2015, doi:10.24432/C5BW33, CC BY 4.0): the purchases of a
gift-ware shop, one gzipped CSV a day. The task is retrieval: does this customer buy this item?

    python examples/online_retail/prepare_data.py <folder with the *.csv.gz files> <output folder>

writes ``train.parquet`` (purchases before the first evaluation day, label 1; negatives are drawn during training) and
``eval.parquet`` (later purchases, label 1, and as many drawn pairs, label 0). Columns:

    CustomerID, StockCode   who, and which item
    Country                 of the customer
    Period                  month of the invoice: what sells changes with the season
    History                 items of the customer's earlier invoices, latest first, separated by spaces
    label, split            1 or 0; "train" or "eval"

An evaluation row holds only what was known on the evening before the first evaluation day: its country, period
and history come from the customer's training purchases, not from the row's own invoice.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from embedding_core.errors import DataError

FIRST_EVALUATION_DAY = "2011-11-01"
_COLUMNS = ("InvoiceNo", "StockCode", "InvoiceDate", "CustomerID", "Country")
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("CustomerID", "StockCode", "Country", "Period", "History")]
    + [("label", pa.int64()), ("split", pa.string())]
)


@dataclasses.dataclass(frozen=True, slots=True)
class Purchase:
    """One item on one invoice; `date` is "YYYY-MM-DD hh:mm:ss", so that text order is time order."""

    invoice: str
    item: str
    date: str
    customer: str
    country: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a customer at some time."""

    country: str
    period: str
    history: str


def read_purchases(folder: Path) -> list[Purchase]:
    """Read the purchases of products by known customers, in the order of the files' names and lines.

    Lines without a customer, cancellations (InvoiceNo starts with C) and codes that do not name a product
    (StockCode does not start with five digits) are left out.

    Raises:
      DataError: the folder has no such file, or a file does not have the columns.
    """
    files = sorted(folder.glob("*.csv.gz"))
    if not files:
        raise DataError(f"{str(folder)!r} has no *.csv.gz file: pass the folder with the daily files.")
    return [Purchase(*row) for file in files for row in _rows(file)]


def _rows(file: Path) -> Iterable[tuple[str, ...]]:
    options = pa.csv.ConvertOptions(include_columns=_COLUMNS, column_types=dict.fromkeys(_COLUMNS, pa.string()))
    # Descriptions may hold line breaks inside quotes.
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    try:
        table = pa.csv.read_csv(file, parse_options=parse, convert_options=options)
    except (pa.ArrowInvalid, KeyError) as error:
        raise DataError(f"{str(file)!r} is not a CSV file with the columns {', '.join(_COLUMNS)}: {error}") from error
    known = pc.not_equal(table["CustomerID"], "")
    cancelled = pc.starts_with(table["InvoiceNo"], "C")
    product = pc.match_substring_regex(table["StockCode"], r"^\d{5}")
    kept = table.filter(pc.and_(pc.and_(known, product), pc.invert(cancelled)))
    return zip(*(kept[name].to_pylist() for name in _COLUMNS), strict=True)


def distinct(purchases: Iterable[Purchase]) -> list[Purchase]:
    """Return the first purchase of every (invoice, item), in order."""
    first: dict[tuple[str, str], Purchase] = {}
    for purchase in purchases:
        first.setdefault((purchase.invoice, purchase.item), purchase)
    return list(first.values())


def draw_negatives(train: Iterable[Purchase], number: int, seed: int = 0) -> list[str]:
    """Draw items uniformly, with replacement, from the distinct items of `train` in order of first appearance."""
    items = np.array(list(dict.fromkeys(purchase.item for purchase in train)), dtype=object)
    return list(np.random.RandomState(seed).choice(items, number))


def _invoices(purchases: Iterable[Purchase]) -> list[list[Purchase]]:
    """Group purchases by invoice, and sort the invoices by the time of their first line."""
    groups: dict[str, list[Purchase]] = collections.defaultdict(list)
    for purchase in purchases:
        groups[purchase.invoice].append(purchase)
    return sorted(groups.values(), key=lambda group: group[0].date)


def _known_over_time(train: Iterable[Purchase], length: int) -> tuple[dict[str, _Known], dict[str, _Known]]:
    """Return what was known just before each training invoice (by invoice), and at the end (by customer)."""
    bought: dict[str, dict[str, None]] = collections.defaultdict(dict)
    before: dict[str, _Known] = {}
    after: dict[str, _Known] = {}
    month = ""
    for invoice in _invoices(train):
        first = invoice[0]
        month = first.date[:7]
        items = bought[first.customer]
        before[first.invoice] = _Known(first.country, month, _latest(items, length))
        for purchase in invoice:
            items.pop(purchase.item, None)  # moves an item bought again to the end
            items[purchase.item] = None
        after[first.customer] = _Known(first.country, "", "")
    final = {
        customer: _Known(known.country, month, _latest(bought[customer], length)) for customer, known in after.items()
    }
    return before, final


def _latest(items: dict[str, None], length: int) -> str:
    return " ".join(list(reversed(items))[:length])


def _row(purchase: Purchase, item: str, known: _Known, label: int, split: str) -> tuple[object, ...]:
    return purchase.customer, item, known.country, known.period, known.history, label, split


def prepare(
    purchases: Sequence[Purchase],
    *,
    first_evaluation_day: str = FIRST_EVALUATION_DAY,
    history_length: int = 100,
) -> tuple[pa.Table, pa.Table]:
    """Return the training rows and the evaluation rows: positives, then negatives in the same order.

    Args:
      purchases: as read by `read_purchases`.
      first_evaluation_day: "YYYY-MM-DD"; earlier purchases are for training. A later one is used if its customer and
        its item both occur in the earlier ones.
      history_length: maximum number of distinct items of earlier invoices in a row's history.

    Raises:
      DataError: there is no purchase before the first evaluation day, or no usable one from then on.
    """
    train = distinct(purchase for purchase in purchases if purchase.date < first_evaluation_day)
    customers, items = {purchase.customer for purchase in train}, {purchase.item for purchase in train}
    test = [
        purchase
        for purchase in distinct(purchase for purchase in purchases if purchase.date >= first_evaluation_day)
        if purchase.customer in customers and purchase.item in items
    ]
    if not train or not test:
        raise DataError(
            f"{len(train)} purchases before {first_evaluation_day} and {len(test)} usable ones from then on: both are "
            "needed; choose another first evaluation day."
        )
    before, final = _known_over_time(train, history_length)
    rows = [_row(bought, bought.item, before[bought.invoice], 1, "train") for bought in train]
    pairs = [_row(bought, bought.item, final[bought.customer], 1, "eval") for bought in test]
    for bought, drawn in zip(test, draw_negatives(train, len(test)), strict=True):
        pairs.append(_row(bought, drawn, final[bought.customer], 0, "eval"))
    return _table(rows), _table(pairs)


def _table(rows: Sequence[tuple[object, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], _SCHEMA)


def baselines(train: pa.Table, pairs: pa.Table) -> dict[str, float]:
    """Compute the AUC of scores computed from counts, without a trained model, over the evaluation pairs.

    The popularity of an item is how often it was bought, in all training rows or in their last month.
    """
    from sklearn.metrics import roc_auc_score

    items, customers = pairs["StockCode"].to_pylist(), pairs["CustomerID"].to_pylist()
    counts = collections.Counter(train["StockCode"].to_pylist())
    bought = set(zip(train["CustomerID"].to_pylist(), train["StockCode"].to_pylist(), strict=True))
    popularity = np.array([counts[item] for item in items])
    last = train.filter(pc.equal(train["Period"], pc.max(train["Period"])))
    recent_counts = collections.Counter(last["StockCode"].to_pylist())
    recent = np.array([recent_counts[item] for item in items])
    before = np.array([pair in bought for pair in zip(customers, items, strict=True)])
    label = pairs["label"].to_numpy()
    return {
        "popularity": float(roc_auc_score(label, popularity)),
        "log1p(popularity) + 3 * bought before": float(roc_auc_score(label, np.log1p(popularity) + 3 * before)),
        "log1p(popularity of the last month) + 3 * bought before": float(
            roc_auc_score(label, np.log1p(recent) + 3 * before)
        ),
    }


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="prepare_data.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="folder with the daily *.csv.gz files")
    parser.add_argument("destination", type=Path, help="folder for train.parquet and eval.parquet")
    parser.add_argument("--first-evaluation-day", default=FIRST_EVALUATION_DAY, help="default: %(default)s")
    parser.add_argument("--history-length", type=int, default=100, help="items at most; default: %(default)s")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare the files named on the command line, and print row counts and baselines."""
    given = _arguments(arguments)
    train, pairs = prepare(
        read_purchases(given.source),
        first_evaluation_day=given.first_evaluation_day,
        history_length=given.history_length,
    )
    given.destination.mkdir(parents=True, exist_ok=True)
    for name, table in (("train", train), ("eval", pairs)):
        pa.parquet.write_table(table, given.destination / f"{name}.parquet")
    print(f"{train.num_rows} training purchases, {pairs.num_rows} evaluation pairs in {given.destination}")
    for name, auc in baselines(train, pairs).items():
        print(f"AUC of {name}: {auc:.4f}")


if __name__ == "__main__":
    main()

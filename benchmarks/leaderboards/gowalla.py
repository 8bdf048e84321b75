"""Gowalla: Recall@20 and NDCG@20 over all items, by the protocol of LightGCN (He et al., 2020).

    python -m benchmarks.leaderboards.gowalla --data FOLDER [--history 20] [--seeds 0 1 2] [--into docs/benchmarks.md]

FOLDER is `data/gowalla` of github.com/gusye1234/LightGCN-PyTorch. Items that the user has in the train split are not
ranked. A user's metric covers all test items of the user; the result is the mean over the users.
"""

from __future__ import annotations

import pathlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from benchmarks.leaderboards.board import Board, Part, described, needed, parser, report

Pairs = npt.NDArray[np.int64]

PUBLISHED = {
    "YouTubeDNN (BARS)": (0.1754, 0.1473),
    "LightGCN (BARS)": (0.1820, 0.1547),
    "UltraGCN (BARS)": (0.1862, 0.1580),
    "SimpleX (BARS)": (0.1872, 0.1557),
}

TEST_HISTORY = 100  # largest length of a test query's history, unless `history` is larger


def read_lists(file: pathlib.Path) -> Pairs:
    """Read lines of a user and the user's items; return int64 `[n, 2]`."""
    pairs = []
    for line in file.read_text(encoding="utf-8").splitlines():
        user, *items = line.split() or [""]
        pairs += [(int(user), int(item)) for item in items]
    return np.array(pairs, np.int64).reshape(-1, 2)


def histories(pairs: Pairs, train: Pairs, length: int, seed: int = 0) -> pa.Array:
    """List for each pair the other train items of its user; draw `length` of them if there are more."""
    draw, order = np.random.default_rng(seed), np.argsort(train[:, 0], kind="stable")
    users, starts = np.unique(train[order, 0], return_index=True)
    of_user = dict(zip(users.tolist(), np.split(train[order, 1], starts[1:]), strict=True))
    none = np.zeros(0, np.int64)
    lists = []
    for user, item in pairs.tolist():
        items = of_user.get(user, none)
        others = items[items != item]
        lists.append(others if len(others) <= length else others[draw.integers(0, len(others), length)])
    splits = np.concatenate([[0], np.cumsum([len(events) for events in lists])]).astype(np.int32)
    return pa.ListArray.from_arrays(splits, np.concatenate([none, *lists]))


def prepare(source: pathlib.Path, folder: pathlib.Path, history: int = 0) -> pathlib.Path:
    """Write the interactions as a Parquet file with columns user, item, split and, if its length is not 0, history.

    Args:
      source: folder of the downloaded files.
      folder: folder to write to.
      history: largest number of items of a history; 0 for none.
    """
    test = read_lists(needed(source, "test.txt"))
    train = read_lists(needed(source, "train.txt"))
    tables = [
        pa.table({"user": pairs[:, 0], "item": pairs[:, 1], "split": [split] * len(pairs)})
        for split, pairs in (("train", train), ("eval", test))
    ]
    if history:
        lists = [histories(train, train, history), histories(test, train, max(history, TEST_HISTORY))]
        tables = [table.append_column("history", events) for table, events in zip(tables, lists, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.concat_tables(tables), folder / "events.parquet")
    return folder / "events.parquet"


def board(source: pathlib.Path, work: pathlib.Path, history: int = 0) -> Board:
    """Prepare the data, and describe the board."""
    return Board(
        name=f"Gowalla, history of {history}" if history else "Gowalla",
        config=described("gowalla_history.yaml" if history else "gowalla.yaml"),
        metrics=("Recall@20", "NDCG@20"),
        published=PUBLISHED,
        parts=(Part(name="gowalla", data=prepare(source, work, history)),),
    )


if __name__ == "__main__":
    made = parser(__doc__, "gowalla")
    made.add_argument("--history", type=int, default=0, help="items of a user's history; 0 for none")
    arguments = made.parse_args()
    report([board(arguments.data, arguments.work, arguments.history)], arguments, "gowalla")

"""Gowalla: Recall@20 and NDCG@20 over all items, by the protocol of LightGCN (He et al., 2020).

    python -m benchmarks.leaderboards.gowalla --data FOLDER [--seeds 0 1 2] [--into docs/benchmarks.md]

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


def read_lists(file: pathlib.Path) -> Pairs:
    """Read lines of a user and the user's items; return int64 `[n, 2]`."""
    pairs = []
    for line in file.read_text(encoding="utf-8").splitlines():
        user, *items = line.split() or [""]
        pairs += [(int(user), int(item)) for item in items]
    return np.array(pairs, np.int64).reshape(-1, 2)


def prepare(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Write the interactions as a Parquet file with columns user, item and split.

    Args:
      source: folder of the downloaded files.
      folder: folder to write to.
    """
    tables = []
    for split, file in (("train", "train.txt"), ("eval", "test.txt")):
        pairs = read_lists(needed(source, file))
        tables.append(pa.table({"user": pairs[:, 0], "item": pairs[:, 1], "split": [split] * len(pairs)}))
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.concat_tables(tables), folder / "events.parquet")
    return folder / "events.parquet"


def board(source: pathlib.Path, work: pathlib.Path) -> Board:
    """Prepare the data, and describe the board."""
    return Board(
        name="Gowalla",
        config=described("gowalla.yaml"),
        metrics=("Recall@20", "NDCG@20"),
        published=PUBLISHED,
        parts=(Part(name="gowalla", data=prepare(source, work)),),
    )


if __name__ == "__main__":
    arguments = parser(__doc__, "gowalla").parse_args()
    report([board(arguments.data, arguments.work)], arguments, "gowalla")

"""Amazon Beauty, Sports and Toys: HitRate@10 and NDCG@10 over all items, leave-one-out, by the protocol of S3-Rec.

    python -m benchmarks.leaderboards.amazon --data FOLDER [--boards Beauty] [--seeds 0 1 2] [--into docs/benchmarks.md]

FOLDER is `data` of github.com/RUCAIBox/CIKM2020-S3Rec (Zhou et al., 2020): `Beauty.txt`, `Sports_and_Outdoors.txt` and
`Toys_and_Games.txt`, with a line for each user: the user, and the items in order of time. A user's last item is the
test item. The second-last item is used for neither training nor testing, but is in the history of the test item. Items
of the history are not ranked.
"""

from __future__ import annotations

import pathlib

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks.leaderboards.board import Board, Part, described, needed, parser, report
from benchmarks.leaderboards.gowalla import read_lists

FILES = {"Beauty": "Beauty.txt", "Sports": "Sports_and_Outdoors.txt", "Toys": "Toys_and_Games.txt"}
PUBLISHED = {"Beauty": (0.0605, 0.0318), "Sports": (0.0385, 0.0204), "Toys": (0.0700, 0.0376)}


def prepare(source: pathlib.Path, folder: pathlib.Path, name: str) -> pathlib.Path:
    """Write the events as a Parquet file with the columns user, item and position (among the user's events)."""
    pairs = read_lists(needed(source, FILES[name]))
    starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
    lengths = np.diff(starts, append=len(pairs))
    position = np.arange(len(pairs)) - np.repeat(starts, lengths)
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"user": pairs[:, 0], "item": pairs[:, 1], "position": position})
    parquet.write_table(table, folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def board(source: pathlib.Path, work: pathlib.Path, name: str) -> Board:
    """Prepare the data, and describe the board of one data set."""
    return Board(
        name=name,
        config=described("amazon.yaml"),
        metrics=("HitRate@10", "NDCG@10"),
        published={"SASRec (S3-Rec)": PUBLISHED[name]},
        parts=(Part(name=name.lower(), data=prepare(source, work, name)),),
    )


if __name__ == "__main__":
    made = parser(__doc__, "amazon")
    made.add_argument("--boards", nargs="+", choices=FILES, default=list(FILES))
    arguments = made.parse_args()
    report([board(arguments.data, arguments.work, name) for name in arguments.boards], arguments, "amazon")

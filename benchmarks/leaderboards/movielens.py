"""MovieLens 100K: RMSE of ratings on the five folds as distributed.

    python -m benchmarks.leaderboards.movielens --data FOLDER [--seeds 0 1 2] [--into docs/benchmarks.md]

FOLDER holds `u1.base`, `u1.test`, ..., `u5.test` of ml-100k (grouplens.org/datasets/movielens/100k). The model of each
fold is trained on its `.base` file alone; a seed's figure is the mean of the five folds.
"""

from __future__ import annotations

import pathlib

import pyarrow as pa
from pyarrow import csv, parquet

from benchmarks.leaderboards.board import Board, Part, described, needed, parser, report

CONFIG = described("movielens.yaml")
METRICS = ("RootMeanSquaredError",)
PUBLISHED = {
    "user and item bias (Surprise, random folds)": (0.944,),
    "SVD (Surprise, random folds)": (0.934,),
    "SVD++ (Surprise, random folds)": (0.919,),
}
FOLDS = (1, 2, 3, 4, 5)
_COLUMNS = ["user", "item", "rating", "time"]


def prepare(source: pathlib.Path, folder: pathlib.Path, fold: int) -> pathlib.Path:
    """Write a fold's ratings as a Parquet file with the columns user, item, rating, time and split."""
    tables = []
    for split, suffix in (("train", "base"), ("eval", "test")):
        rows = csv.read_csv(
            needed(source, f"u{fold}.{suffix}"),
            read_options=csv.ReadOptions(column_names=_COLUMNS),
            parse_options=csv.ParseOptions(delimiter="\t"),
        )
        tables.append(rows.append_column("split", pa.array([split] * rows.num_rows)))
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.concat_tables(tables), folder / f"fold{fold}.parquet")
    return folder / f"fold{fold}.parquet"


def board(source: pathlib.Path, work: pathlib.Path) -> Board:
    """Prepare the data, and describe the board."""
    return Board(
        name="MovieLens 100K",
        config=CONFIG,
        metrics=METRICS,
        published=PUBLISHED,
        parts=tuple(Part(name=f"fold{fold}", data=prepare(source, work, fold)) for fold in FOLDS),
    )


if __name__ == "__main__":
    arguments = parser(__doc__, "movielens").parse_args()
    report([board(arguments.data, arguments.work)], arguments, "movielens")

import json
import pathlib

import numpy as np
import pytest
from pyarrow import parquet

from benchmarks.leaderboards import amazon, gowalla, movielens
from benchmarks.leaderboards.board import Board, Part, run_board, table_of
from pipelines.config import load_config
from pipelines.local.run_local import run

LISTS = "0 3 1\n1 2\n\n2\n"


def in_this_process(config, overrides):
    """Run the pipeline for three steps in this process, which has already loaded TensorFlow."""
    run(load_config(config, [*overrides, "training.epochs=null", "training.steps=3", "evaluation.min_rows=0"]))


def test_lists_of_items_become_pairs(tmp_path):
    (tmp_path / "lists.txt").write_text(LISTS, encoding="utf-8")
    assert gowalla.read_lists(tmp_path / "lists.txt").tolist() == [[0, 3], [0, 1], [1, 2]]


def board_of(folder, parts):
    (folder / "config.yaml").write_text("", encoding="utf-8")
    return Board(
        name="made up",
        config=folder / "config.yaml",
        metrics=("AUC",),
        published={"theirs": (0.5,)},
        parts=tuple(Part(name=name, data=folder / name) for name in parts),
    )


def test_seed_is_the_mean_of_its_parts_and_no_run_is_repeated(tmp_path):
    ran = []

    def write_report(config, overrides):
        settings = dict(override.split("=") for override in overrides)
        ran.append(settings["seed"])
        folder = pathlib.Path(settings["work_dir"], "report")
        folder.mkdir(parents=True)
        auc = 0.5 + int(settings["seed"]) / 10 + (0.01 if settings["data.path"].endswith("b") else 0)
        text = json.dumps({"evaluation": [{"metric": "AUC", "value": auc}]})
        (folder / "report.json").write_text(text, encoding="utf-8")

    board = board_of(tmp_path, ("a", "b"))
    first = run_board(board, [0, 1], tmp_path / "runs", write_report)
    assert [seed["AUC"] for seed in first] == pytest.approx([0.505, 0.605])
    assert run_board(board, [0, 1], tmp_path / "runs", write_report) == first
    assert ran == ["0", "0", "1", "1"]
    assert "| made up | theirs | 0.5000 | |" in table_of([(board, first)])
    assert "| made up | this project, 2 seeds | **0.5550 (0.5050-0.6050)** |" in table_of([(board, first)])


@pytest.mark.slow
def test_movielens_runs_from_its_files_to_the_rmse(tmp_path):
    draw = np.random.default_rng(0)
    for suffix, rows in (("base", 90), ("test", 30)):
        ratings = zip(draw.integers(1, 9, rows), draw.integers(1, 12, rows), draw.integers(1, 6, rows), strict=True)
        text = "".join(f"{user}\t{item}\t{rating}\t88{user}\n" for user, item, rating in ratings)
        (tmp_path / f"u1.{suffix}").write_text(text, encoding="utf-8")
    fold = Part(name="fold1", data=movielens.prepare(tmp_path, tmp_path / "work", 1))
    board = Board(name="MovieLens", config=movielens.CONFIG, metrics=movielens.METRICS, published={}, parts=(fold,))
    (figures,) = run_board(board, [0], tmp_path / "work", in_this_process)
    assert 0.5 < figures["RootMeanSquaredError"] < 4.5  # the model was trained for three steps only


def lines_of(draw, users, items, longest):
    """Return a line for each user: the user, then distinct items."""
    lists = (draw.permutation(items)[: draw.integers(4, longest)].tolist() for _ in range(users))
    return [[user, *found] for user, found in enumerate(lists)]


def write_lists(file, lines):
    file.write_text("".join(" ".join(map(str, line)) + "\n" for line in lines), encoding="utf-8")


@pytest.mark.slow
def test_gowalla_runs_from_its_files_to_recall(tmp_path):
    lines = lines_of(np.random.default_rng(1), 25, 40, 9)
    write_lists(tmp_path / "train.txt", [line[:-2] for line in lines])
    write_lists(tmp_path / "test.txt", [[line[0], *line[-2:]] for line in lines])
    board = gowalla.board(tmp_path, tmp_path / "work")
    (figures,) = run_board(board, [0], tmp_path / "work", in_this_process)
    assert 0 <= figures["NDCG@20"] <= figures["Recall@20"] <= 1
    assert figures["Recall@20"] > 0  # the top 20 of at most 40 items


def test_positions_of_events_start_anew_with_each_user(tmp_path):
    write_lists(tmp_path / "Beauty.txt", [[1, 5, 6], [2, 6], [3, 5, 7, 6]])
    events = parquet.read_table(amazon.prepare(tmp_path, tmp_path, "Beauty"))
    assert events["position"].to_pylist() == [0, 1, 0, 0, 1, 2]
    assert events["item"].to_pylist() == [5, 6, 6, 5, 7, 6]


@pytest.mark.slow
def test_amazon_runs_from_its_files_to_the_hit_rate(tmp_path):
    write_lists(tmp_path / "Toys_and_Games.txt", lines_of(np.random.default_rng(2), 20, 25, 9))
    board = amazon.board(tmp_path, tmp_path / "work", "Toys")
    (figures,) = run_board(board, [0], tmp_path / "work", in_this_process)
    assert 0 < figures["NDCG@10"] <= figures["HitRate@10"] <= 1  # the top 10 of at most 25 items

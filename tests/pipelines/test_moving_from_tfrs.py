"""Follows docs/moving_from_tfrs.md on made-up rows of MovieLens's form: every block of the page is run."""

import contextlib
import json
import math
import os
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.model_inputs import build_model, call_model, sequence_lengths
from pipelines.config import load_config

pytestmark = pytest.mark.tfx

PAGE = (Path(__file__).parents[2] / "docs" / "moving_from_tfrs.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(?:yaml|python)\n(.*?)```", PAGE, re.DOTALL)
FILES = {match[1]: block for block in BLOCKS if (match := re.match(r"# (\w+\.(?:py|yaml))\n", block))}
LOOPS = [block for block in BLOCKS if not block.startswith("# ") and "glob" not in block]
(QUERY,) = (block for block in BLOCKS if "glob" in block)
CONFIGS = sorted(name for name in FILES if name.endswith(".yaml"))
SMALL = (
    "training.batch_size=64",
    "training.epochs=4",
    "training.table_optimizer.initial_accumulator_value=2.4e-5",
    "training.dense_optimizer.learning_rate=0.01",
    "training.strategy=cpu",
)
USERS, MOVIES = 60, 40


def movielens(folder):
    """Write u.data, u.item and u.user: even users watch the first half of the movies, and all like the odd movies."""
    draw = np.random.default_rng(0)
    folder.mkdir()
    ratings = []
    for second in range(2400):
        user, fan = draw.integers(1, USERS + 1), draw.random() < 0.9
        movie = draw.integers(1, MOVIES // 2 + 1) + (MOVIES // 2 if (user % 2 == 1) == fan else 0)
        stars = np.clip(draw.integers(-1, 2) + (4 if movie % 2 else 2), 1, 5)
        ratings.append(f"{user}\t{movie}\t{stars}\t{880000000 + 60 * second}\n")
    (folder / "u.data").write_text("".join(ratings))
    titles = [
        f"{movie}|Caf\xe9 {'East' if movie % 2 else 'West'}, {movie} (1995)|01-Jan-1995||\n"
        for movie in range(1, MOVIES + 1)
    ]
    (folder / "u.item").write_text("".join(titles), encoding="latin-1")
    people = [
        f"{user}|{20 + user}|{'FM'[user % 2]}|{'writer' if user % 3 else 'artist'}|{10000 + user % 7}\n"
        for user in range(1, USERS + 1)
    ]
    (folder / "u.user").write_text("".join(people))


@contextlib.contextmanager
def inside(folder):
    """Work in a folder, whose modules can be imported."""
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the page's files, and the data that its script prepares."""
    folder = tmp_path_factory.mktemp("movielens")
    movielens(folder / "ml-100k")
    for name, block in FILES.items():
        (folder / name).write_text(block, encoding="utf-8")
    with inside(folder):
        runpy.run_path(str(folder / "prepare.py"))
        yield folder


def pushed(folder, name, *changes):
    """Run a configuration of the page, with changes; return the report, the proven version, and the work_dir."""
    from pipelines.local.run_local import run

    config = load_config(folder / f"{name}.yaml", [*SMALL, *changes])
    _, report = run(config)
    assert report.push.pushed, report.push.reason
    assert max(row["difference"] for row in report.parity) <= 1e-5
    (version,) = Path(config.work_dir, "serving").glob("[0-9]*")
    return report, tf.saved_model.load(str(version)), Path(config.work_dir)


def outputs_of(version):
    return set(version.signatures["serving_default"].structured_outputs)


def beats_popularity(report, times=1.5):
    return report.retrieval["metrics"]["Recall@10"] > times * report.retrieval["popularity"]["Recall@10"]


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_are_valid_with_their_data(project, name):
    from pipelines.commands import cli

    with pytest.raises(SystemExit) as end:
        cli.main(["validate", str(project / name), "--data"])
    assert end.value.code == 0


@pytest.mark.slow
def test_ranking_predicts_ratings(project):
    report, version, _ = pushed(project, "ranking")
    assert outputs_of(version) == {"prediction"}
    model, mean = report.quality[:2]
    assert mean["scorer"] == "mean of the label"
    assert model["metrics"]["RMSE"] < 0.9 * mean["metrics"]["RMSE"]
    liked, disliked = (
        version.signatures["raw"](user_id=tf.constant(["2"]), movie_title=tf.constant([f"Caf\xe9 {movie} (1995)"]))
        for movie in ("East, 1", "West, 2")
    )
    assert liked["prediction"] > disliked["prediction"]


@pytest.mark.slow
def test_retrieval_finds_movies_and_answers_queries(project, capsys):
    report, _, _ = pushed(project, "retrieval")
    assert beats_popularity(report)
    capsys.readouterr()
    exec(QUERY, {"tf": tf})
    assert capsys.readouterr().out.count("Caf") == 3


@pytest.mark.slow
def test_multitask_retrieves_and_rates_alike_on_every_device(project):
    histories, tables = [], []
    for device in ("cpu", "simulated_tpu"):
        changes = [f"training.strategy={device}", f"work_dir=runs/multitask_{device}"]
        changes += ["training.softmax={feature: movie_title, sampled: 8}"]
        changes += ["training.topology=2x2"] if device == "simulated_tpu" else []
        report, version, work = pushed(project, "multitask", *changes)
        assert outputs_of(version) == {"stars_prediction", "watch_logit", "watch_probability"}
        assert {"top_k", "query", "candidate"} <= set(version.signatures)
        by_scorer = {row["scorer"]: row["metrics"] for row in report.quality}
        assert by_scorer["stars: this model"]["RMSE"] < 0.9 * by_scorer["stars: mean of the label"]["RMSE"]
        assert "watch: popularity of movie_title" in by_scorer
        assert beats_popularity(report)
        (path,) = work.glob("artifacts/EmbeddingTrainer/model_run/*/history.json")
        histories.append([entry["loss"] for entry in json.loads(path.read_text())["train"]])
        (path,) = work.glob("artifacts/CheckpointRetriever/embedding_checkpoint/*/tables.index")
        reader = tf.train.load_checkpoint(str(path).removesuffix(".index"))
        tables.append({key: reader.get_tensor(key) for key in sorted(reader.get_variable_to_shape_map())})
    np.testing.assert_allclose(*histories, rtol=1e-4)
    assert list(tables[0]) == list(tables[1])
    for key, values in tables[0].items():
        if values.dtype == np.float32:
            np.testing.assert_allclose(tables[1][key], values, rtol=1e-3, atol=1e-4, err_msg=key)


@pytest.mark.slow
def test_sequential_finds_the_next_movie(project):
    report, version, _ = pushed(project, "sequential", "evaluation.min_rows=60", "training.epochs=8")
    assert beats_popularity(report, times=1.1)
    assert report.eval_rows == USERS
    assert version.signatures["top_k"](history=tf.constant([["1", "2", "3"]]))["tokens"].shape == (1, MOVIES)


@pytest.mark.parametrize(
    ("module", "features", "dense"),
    [("gru_model", ("movie_id", "history"), []), ("stacked_dcn", ("movie_id", "user_id"), ["user_age"])],
)
def test_models_of_the_page_are_built(project, module, features, dense):
    config = EmbeddingConfig(
        tables=(TableConfig(name="t", vocabulary_size=9, dim=4),),
        features=tuple(
            FeatureConfig(name=name, table="t", max_sequence_length=3 if name == "history" else 0) for name in features
        ),
    )
    model = build_model(module, config, dense, {})
    activations = {name: tf.ones([2, 3, 4] if name == "history" else [2, 4]) for name in features}
    lengths = sequence_lengths(config, {"history": tf.ragged.constant([[1], [1, 2]], tf.int64)} if not dense else {})
    numbers = {**dict.fromkeys(dense, tf.ones([2, 1])), **lengths}
    assert call_model(model, activations, numbers)["label"].shape == (2, 1)


def test_loops_of_your_own_train(project, capsys):
    names = {}
    tf_keras.utils.set_random_seed(0)
    for block in LOOPS:
        exec(block, names)
    rmse, *titles = capsys.readouterr().out.splitlines()
    worst = 0.95 * names["ratings"].std()  # slightly less than the error of predicting the mean
    assert float(rmse) < worst
    assert "".join(titles).count("Caf") == 3
    figures = names["multitask"].evaluate(names["batches"], return_dict=True, verbose=0)
    assert figures["root_mean_squared_error"] < worst
    events = next(iter(names["events"].unbatch().batch(512)))
    by_chance = 512 * math.log(512)
    assert names["sequential"].compute_loss(events) < 0.97 * by_chance

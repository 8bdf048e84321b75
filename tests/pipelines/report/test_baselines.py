"""Tests that the baseline regression's regularization is chosen on the train split, and is the same every time."""

import dataclasses
import pathlib

import numpy as np
import pytest
import scipy.sparse
import sklearn.metrics
import tensorflow as tf
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression

from components import progress
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.evaluation import Predictions
from embedding_core.tasks import Task
from embedding_core.training import Inputs
from pipelines.report import baselines

pytestmark = pytest.mark.tfx


def rows(count, columns, seed):
    """Return one-hot rows of tokens with small effects on the label; scikit-learn's default strength overfits them."""
    effects = np.random.default_rng(0).normal(0, 0.4, columns)
    random = np.random.default_rng(seed)
    tokens = random.integers(columns, size=count)
    label = (random.random(count) < 1 / (1 + np.exp(-effects[tokens]))).astype(float)
    features = scipy.sparse.csr_matrix((np.ones(count), tokens, np.arange(count + 1)), shape=(count, columns))
    return baselines._Rows(features=features, label=label, weight=np.ones(count))


def classes(count, seed):
    return np.random.default_rng(seed).integers(3, size=count).astype(float)


def test_regression_is_better_than_with_the_default_strength():
    train, held_out = rows(3000, 1000, 1), rows(3000, 1000, 2)
    model, is_chosen = baselines._regression(train)
    assert is_chosen
    assert model.C == baselines._regression(train)[0].C < 1

    def loss(model):
        return baselines._score("", model.predict_proba(held_out.features)[:, 1], held_out).metrics["log loss"]

    default = LogisticRegression(max_iter=1000).fit(train.features, train.label)
    assert loss(model) < loss(default)


def test_classes_are_scored_as_by_sklearn_if_one_is_held_back():
    task = Task(kind="multiclass", classes=("a", "b", "c", "d"))
    train, held_out = (dataclasses.replace(rows(400, 20, seed), label=classes(400, seed)) for seed in (1, 2))
    train.label[np.flatnonzero(baselines._held_back(train))[0]] = 3
    model, _ = baselines._regression(train)
    predicted = baselines._by_class(task, model, held_out)
    found = baselines._score_of_classes("", predicted, held_out).metrics
    label, classes_ = held_out.label, range(4)
    assert found["cross-entropy"] == pytest.approx(sklearn.metrics.log_loss(label, predicted, labels=classes_))
    assert found["accuracy"] == sklearn.metrics.accuracy_score(label, predicted.argmax(axis=1))
    shares = baselines._shares(task, train, 2)
    np.testing.assert_allclose(shares, [np.bincount(train.label.astype(int), minlength=4) / 400] * 2)


@pytest.mark.parametrize(("kind", "strength"), [("binary", "C = 1"), ("regression", "alpha = 100")])
def test_too_few_rows_leave_a_strength_that_was_not_chosen(kind, strength):
    train = rows(4, 2, 1)
    train = train if kind == "binary" else baselines._some(train, np.arange(4) < 1)
    compare = baselines._compared_classes if kind == "binary" else baselines._compared_errors
    (score,) = compare(Task(kind=kind), ["regression"], train, train)
    assert f"{strength}: the train split has too few rows to choose" in score.note


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "count"])
def test_label_without_rows_has_no_figures(of_items, kind):
    """A label that only eval rows have has no baseline, and one that only train rows have has no metrics."""
    inputs, asked = of_items["inputs"], ("mean", "regression", "trees")
    task = Task(kind=kind, **({"classes": ("x", "y")} if kind == "multiclass" else {}))
    inputs = dataclasses.replace(inputs, tasks=(task, Task(name="all", kind="positive", key=None)))
    files = {"some": write(of_items["kept"] + ".some", [(b"a", n % 2) for n in range(40)])}
    files["none"] = write(of_items["kept"] + ".none", [(b"a", np.nan)] * 9)

    def scores(train, held_out):
        return baselines._measured(inputs, files[train], files[held_out], None, of_items["counts"], asked)

    assert scores("none", "some") == []
    assert [set(score.metrics.values()) for score in scores("some", "none")] == [{None}] * 3


def test_weights_count_in_the_scores_as_by_sklearn():
    scored = dataclasses.replace(rows(200, 20, 1), weight=np.random.default_rng(4).random(200))
    predicted = np.random.default_rng(5).random(200)
    metrics = baselines._score("", predicted, scored).metrics
    weighted = {"sample_weight": scored.weight}
    assert metrics["AUC"] == pytest.approx(sklearn.metrics.roc_auc_score(scored.label, predicted, **weighted))
    assert metrics["log loss"] == pytest.approx(sklearn.metrics.log_loss(scored.label, predicted, **weighted))


def test_rows_without_weight_have_no_metrics_and_choose_nothing():
    train = rows(100, 20, 1)
    weightless = dataclasses.replace(train, weight=np.zeros_like(train.weight))
    assert set(baselines._score("", np.zeros(100), weightless).metrics.values()) == {None}
    assert baselines._of_best_strength(weightless).C == 1.0


def write(path, rows):
    """Write rows of an item, a history of the item b, and a label."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for item, label in rows:
            features = {
                "item": tf.train.Feature(bytes_list=tf.train.BytesList(value=[item])),
                "history": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"b"] * 9)),
                "label": tf.train.Feature(float_list=tf.train.FloatList(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return [str(path)]


@pytest.fixture
def of_items(tmp_path):
    """Return the arguments of `compare_with_baselines` for three rows of items, all positive, and two to evaluate."""
    (tmp_path / "items.txt").write_text("b\na\n")
    table = TableConfig(name="items", vocabulary_size=3, dim=2, vocabulary="items", oov_rows=1)
    features = [
        FeatureConfig(name="item", table="items", column=ColumnConfig(name="item")),
        FeatureConfig(name="history", table="items", column=ColumnConfig(name="history", multivalent=True)),
    ]
    inputs = Inputs(
        config=EmbeddingConfig(tables=[table], features=features),
        vocabularies={"items": str(tmp_path / "items.txt")},
        raw_spec={"label": tf.io.FixedLenFeature([], tf.float32)},
    )
    return {
        "inputs": inputs,
        "train_files": write(tmp_path / "train", [(b"a", 1), (b"a", 1), (b"b", 1)]),
        "eval_files": write(tmp_path / "eval", [(b"a", 1), (b"b", 0)]),
        "predictions": Predictions(
            label=np.array([[1.0], [0.0]]), weight=np.ones(2), prediction=np.array([[0.5], [0.2]])
        ),
        "candidate": "item",
        "counts": {"items": np.array([1 + 27, 2])},
        "asked": ("mean", "regression"),
        "kept": str(tmp_path / "baselines.json"),
        "made_by": {},
    }


def auc_of(compared):
    return {score.scorer: score.metrics["AUC"] for score in compared.scores}


def test_popularity_of_an_item_does_not_count_histories(of_items):
    assert auc_of(baselines.compare_with_baselines(**of_items))["popularity of item"] == 1.0


def test_progress_counts_rows_and_names_what_is_fitted(of_items):
    files = write(of_items["kept"] + ".train", [(b"a", number % 2) for number in range(20)])
    said = []
    before = progress.set_sink(said.append)
    try:
        baselines.compare_with_baselines(**{**of_items, "train_files": files, "asked": ("regression", "trees")})
    finally:
        progress.set_sink(before)
    fits = [f"fitting the regression with C = {strength:g}" for strength in baselines._STRENGTHS[:2]]
    assert [state.detail for state in said if state.detail] == [*fits, "fitting trees"]
    assert [state.done for state in said if not state.detail] == [20, 22, 42, 44]


def test_baselines_of_the_same_rows_are_not_measured_again(of_items, monkeypatch):
    first = baselines.compare_with_baselines(**of_items)
    measured = baselines._measured
    monkeypatch.setattr(baselines, "_measured", None)
    worse = dataclasses.replace(of_items["predictions"], prediction=np.array([[0.2], [0.5]]))
    again = baselines.compare_with_baselines(**{**of_items, "predictions": worse})
    assert (first.is_kept, again.is_kept, again.rows, again.scores[1:]) == (False, True, 2, first.scores[1:])
    assert [auc_of(compared)[baselines.THIS_MODEL] for compared in (first, again)] == [1.0, 0.0]
    monkeypatch.setattr(baselines, "_measured", measured)
    renamed = dataclasses.replace(of_items["inputs"], tasks=(Task(name="other"),))
    for changed in ({"made_by": {}, "inputs": renamed}, {"train_files": of_items["eval_files"]}):
        assert not baselines.compare_with_baselines(**{**of_items, **changed}).is_kept


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "count"])
def test_trees_are_those_of_scikit_learn(tmp_path, monkeypatch, kind):
    """Rows with a token, or none, of an extended vocabulary that is longer than the categories of scikit-learn."""
    monkeypatch.setattr(baselines, "_OTHER_TOKENS", 3)
    (tmp_path / "items.txt").write_text("f\na\nb\nc\nd\ne\n")
    table = TableConfig(name="items", vocabulary_size=7, dim=2, vocabulary="items", oov_rows=1)
    inputs = Inputs(
        config=EmbeddingConfig(
            tables=[table], features=[FeatureConfig(name="item", table="items", column=ColumnConfig(name="item"))]
        ),
        vocabularies={"items": str(tmp_path / "items.txt")},
        raw_spec={"label": tf.io.FixedLenFeature([], tf.float32)},
        tasks=(Task(kind=kind, key="label", **({"classes": ("x", "y")} if kind == "multiclass" else {})),),
    )
    random = np.random.default_rng(0)
    splits = []
    for name in ("train", "eval"):
        tokens = random.integers(8, size=400)
        labels = (random.random(400) < tokens / 8).astype(int)
        files = write(
            tmp_path / name, [(b"abcdefz"[at : at + 1], label) for at, label in zip(tokens, labels, strict=True)]
        )
        codes = np.where(tokens == 7, np.nan, np.minimum(tokens, 3)).astype(float)[:, None]
        splits.append((files, codes, labels))
    (train_files, train, label), (eval_files, held_out, judged) = splits
    (found,) = baselines._scores_of_trees(inputs, train_files, eval_files, {"items": np.array([1, 6, 5, 4, 3, 2])})
    settings = {"categorical_features": [0], "early_stopping": False, "random_state": 0}
    if kind in ("binary", "multiclass"):
        predicted = HistGradientBoostingClassifier(**settings).fit(train, label).predict_proba(held_out)
        name = "log loss" if kind == "binary" else "cross-entropy"
        assert found.metrics[name] == pytest.approx(sklearn.metrics.log_loss(judged, predicted))
    else:
        loss = "poisson" if kind == "count" else "squared_error"
        predicted = HistGradientBoostingRegressor(loss=loss, **settings).fit(train, label).predict(held_out)
        assert found.metrics["RMSE"] == pytest.approx(sklearn.metrics.root_mean_squared_error(judged, predicted))


def test_only_the_baselines_that_are_asked_for(of_items):
    scorers = {}
    for asked in (["mean"], ["mean", "trees"]):
        files = write(pathlib.Path(of_items["kept"]).with_name("two"), [(b"a", 1), (b"b", 0)] * 30)
        given = {**of_items, "train_files": files, "candidate": None, "asked": asked}
        compared = baselines.compare_with_baselines(**given)
        scorers[len(asked)] = [score.scorer for score in compared.scores]
        assert not compared.is_kept
    assert scorers == {
        1: [baselines.THIS_MODEL, "mean of the label"],
        2: [baselines.THIS_MODEL, "mean of the label", baselines._TREES],
    }

"""Runs Evaluator's executor on exported models; its ranking and per-user metrics must equal their definitions."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import copy
import json
import math

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import roc_auc_score

from embedding_core.columns import DenseInputs
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError, DataError
from embedding_core.model_inputs import build_model
from embedding_core.quality_rules import RankingSettings
from embedding_core.serving import export_model
from tests.support.artifacts import artifact, inputs_of, write_split
from tests.support.vocabularies import vocabulary_of

pytestmark = pytest.mark.tfx

USERS, ITEMS = [b"u%d" % n for n in range(30)], [b"i%d" % n for n in range(50)]
UNKNOWN = b"never trained on"
TOWERS = {"query_features": ["user"], "candidate_features": ["item"]}
NAMES = ("Recall@5", "NDCG@5", "MRR@5", "HitRate@5", "Recall@1000")


def feature(name, table, **column):
    return FeatureConfig(name=name, table=table, column=ColumnConfig(name=name, **column))


CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="user", vocabulary="user", vocabulary_size=31, dim=5, oov_rows=1),
        TableConfig(name="item", vocabulary="item", vocabulary_size=51, dim=5, oov_rows=1),
    ),
    features=(feature("user", "user"), feature("history", "item", multivalent=True), feature("item", "item")),
)


def tables(seed):
    """Make tables whose entries are small whole numbers, so that there are many ties."""
    draw = np.random.default_rng(seed)
    return {name: draw.integers(-1, 2, (rows, 5)).astype(np.float32) for name, rows in (("user", 31), ("item", 51))}


def scores_of(seed):
    """Return each user's logit for each item, without the trained scalar; column 0 of the table rows is the bias."""
    made = tables(seed)
    user, item = made["user"], made["item"]
    return user[:, 1:] @ item[:50, 1:].T + user[:, :1] + item[:50, 0]


def rows(number, seed):
    draw = np.random.default_rng(seed)
    for row in range(number):
        yield {
            "user": USERS[draw.integers(30)],
            "item": UNKNOWN if draw.random() < 0.1 else ITEMS[draw.integers(50)],
            "history": [ITEMS[n] for n in draw.integers(50, size=draw.integers(4))],
            "label": float(draw.random() < 0.7),
            "city": b"ab"[row % 2 : row % 2 + 1],
        }


TRAIN, HELD_OUT = list(rows(200, 1)), list(rows(300, 2))


def export(folder, vocabularies, seed):
    files = {name: str(vocabularies / f"{name}.txt") for name in ("user", "item")}
    labels = DenseInputs(names=("label",), spec={"label": tf.io.FixedLenFeature([], tf.float32)})
    model = build_model("pipelines.models.two_tower", CONFIG, (), TOWERS)
    export_model(
        folder / "Format-Serving", config=CONFIG, tables=tables(seed), vocabularies=files, model=model, labels=labels
    )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return the artifacts that Evaluator reads by input key."""
    from tfx.types import standard_artifacts

    folder = tmp_path_factory.mktemp("rankings")
    vocabularies = [vocabulary_of(USERS, "user"), vocabulary_of(ITEMS, "item")]
    made = inputs_of(folder, CONFIG, vocabularies, train=TRAIN, eval=HELD_OUT)
    for seed, key in enumerate(("model", "baseline_model"), start=1):
        made[key] = artifact(standard_artifacts.Model, folder / key)
        made[key].id = seed
        export(folder / key, folder / "vocabularies", seed)
    return {key: [value] for key, value in made.items()}


def eval_config(tmp_path, **evaluation):
    """Return TFMA's configuration as a pipeline makes it."""
    from pipelines.config import config_from_mapping
    from pipelines.pipeline import tfma_config

    (tmp_path / "rows.csv").write_text("")
    history = {"name": "history", "separator": " ", "vocabulary": "item", "table": "item"}
    values = {
        "data": "rows.csv",
        "label": "label",
        "features": {"categorical": ["user", history, "item"]},
        "model": {"name": "two_tower", "arguments": TOWERS},
        "evaluation": {"metrics": NAMES, **evaluation},
    }
    config = config_from_mapping(values, tmp_path)
    return tfma_config.eval_config(config, has_baseline=config.evaluation.baseline is not None)


def evaluate(inputs, config, folder, **settings):
    """Run the executor and return its artifacts."""
    from google.protobuf import json_format
    from tfx.types import standard_artifacts

    from components.evaluator.executor import Executor

    evaluation = artifact(standard_artifacts.ModelEvaluation, folder / "evaluation")
    blessing = artifact(standard_artifacts.ModelBlessing, folder / "blessing")
    has_baseline = any(spec.is_baseline for spec in config.model_specs)
    given = {key: value for key, value in inputs.items() if has_baseline or key != "baseline_model"}
    ranking = RankingSettings(columns=("city", "history", "item", "label", "user"), **settings)
    properties = {"eval_config": json_format.MessageToJson(config), "ranking": json.dumps(ranking.to_mapping())}
    Executor().Do(given, {"evaluation": [evaluation], "blessing": [blessing]}, properties)
    return evaluation, blessing


@pytest.mark.parametrize("first", ["buy", "view"])
def test_queries_are_the_rows_of_the_first_label(tmp_path, first):
    from tensorflow_model_analysis.proto.config_pb2 import ModelSpec

    from components.evaluator.model_scores import Scorer

    names = ["buy", "view"]

    def labels(examples):
        return {name: tf.fill([tf.size(examples)], float(name == first)) for name in names}

    signature = tf.function(labels, input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    signatures = dict.fromkeys(["labels", "scores"], signature)
    tf.saved_model.save(tf.Module(), str(tmp_path), signatures=signatures)
    keys = {name: name for name in names}
    spec = ModelSpec(
        signature_name="scores", preprocessing_function_names=["labels"], label_keys=keys, prediction_keys=keys
    )
    assert Scorer(str(tmp_path), spec, first).positive(tf.constant(["", ""])).tolist() == [True, True]


def figures(evaluation):
    """Return the metrics that TFMA loads, by slice, model name, `is_diff` and metric name."""
    import tensorflow_model_analysis as tfma

    return {
        (str(part.slice_key.single_slice_keys[0].bytes_value.decode()) if part.slice_key.single_slice_keys else "",
         entry.key.model_name, entry.key.is_diff, entry.key.name): entry.value.double_value.value
        for part in tfma.load_metrics(evaluation.uri)
        for entry in part.metric_keys_and_values
    }  # fmt: skip


def queries(user, exclude_seen):
    """Yield each query's last row, known true items, number of true items, and seen items."""
    positive = [(number, row) for number, row in enumerate(HELD_OUT) if row["label"]]
    groups = {}
    for number, row in positive:
        groups.setdefault(row["user"] if user else number, []).append(row)
    for group in groups.values():
        last, items = group[-1], [row["item"] for row in group]
        known = {ITEMS.index(item) for item in items if item != UNKNOWN}
        seen = {row["item"] for row in TRAIN if row["label"] and row["user"] == last["user"]} if user else set()
        seen = {ITEMS.index(item) for item in seen - {UNKNOWN}} if exclude_seen else set()
        yield last, known, len(known) + items.count(UNKNOWN), seen


def definition(name, scores, user, exclude_seen, city=None):
    """Return a metric from its definition, averaged over 400 random orders of equal scores."""
    measure, _, k = name.partition("@")
    draw, values = np.random.default_rng(0), []
    for last, known, relevant, seen in queries(user, exclude_seen):
        if city is not None and last["city"] != city:
            continue
        own = scores[USERS.index(last["user"])].astype(np.float64)
        own[list(seen)] = -math.inf
        noise = draw.random((400, 50)) * 1e-3
        order = np.argsort(-(own + noise), axis=1)[:, : min(int(k), 50 - len(seen))]
        hits = np.isin(order, list(known))
        gain = 1 / np.log2(np.arange(2, hits.shape[1] + 2))
        first = np.where(hits.any(1), 1 / (hits.argmax(1) + 1), 0)
        ideal = (1 / np.log2(np.arange(2, min(relevant, int(k)) + 2))).sum()
        values.append(
            {"Recall": hits.sum(1) / relevant, "HitRate": hits.any(1), "MRR": first, "NDCG": hits @ gain / ideal}[
                measure
            ].mean()
        )
    return np.mean(values)


@pytest.mark.parametrize("user", [None, "user"])
def test_metrics_are_those_of_sorting_all_candidates(inputs, tmp_path, user):
    """Covers several true items, seen items, unknown items, ties, a baseline and slices, read by TFMA's own loader."""
    import tensorflow_model_analysis as tfma

    exclude = user is not None
    config = eval_config(tmp_path, baseline="pushed", slices=["city"], user=user, exclude_seen=exclude)
    evaluation, _ = evaluate(inputs, config, tmp_path, user=user, exclude_seen=exclude)
    found = figures(evaluation)
    assert (f"{NAMES[0]}, nothing left out" in {key[3] for key in found}) == exclude
    for name in NAMES:
        if exclude:
            every = [definition(name, scores_of(seed), user, False) for seed in (1, 2)]
            shown = f"{name}, nothing left out"
            assert found["", "candidate", False, shown] == pytest.approx(every[0], abs=0.01)
            assert found["", "candidate", True, shown] == pytest.approx(every[0] - every[1], abs=0.02)
        wanted = [definition(name, scores_of(seed), user, exclude) for seed in (1, 2)]
        assert found["", "candidate", False, name] == pytest.approx(wanted[0], abs=0.01)
        assert found["", "baseline", False, name] == pytest.approx(wanted[1], abs=0.01)
        assert found["", "candidate", True, name] == pytest.approx(wanted[0] - wanted[1], abs=0.02)
        for city in ("a", "b"):
            sliced = definition(name, scores_of(1), user, exclude, city.encode())
            assert found[city, "candidate", False, name] == pytest.approx(sliced, abs=0.015)
    result = tfma.load_eval_result(evaluation.uri, model_name="candidate")
    assert {*NAMES} <= {*result.get_metrics_for_slice()}


@pytest.mark.parametrize(
    ("bound", "blessed"),
    [
        ({"min": 0.0, "max": 1.0, "min_improvement": -1.0}, 1),
        ({"min": 0.9}, 0),
        ({"max": 0.01}, 0),
        ({"min_improvement": 0.9}, 0),
    ],
)
def test_threshold_of_a_ranking_decides_the_blessing(inputs, tmp_path, bound, blessed):
    baseline = {"baseline": "pushed"} if "min_improvement" in bound else {}
    _, blessing = evaluate(inputs, eval_config(tmp_path, thresholds={"NDCG@5": bound}, **baseline), tmp_path)
    assert blessing.get_int_custom_property("blessed") == blessed


@pytest.mark.parametrize("bound", [{"min": 0.0}, {"min_improvement": 0.0}])
def test_split_of_repeats_alone_reaches_no_threshold(inputs, tmp_path, bound):
    """The metrics of candidate and baseline would both be 0."""
    for split in ("train", "eval"):
        write_split(tmp_path / "examples", TRAIN, split)
    (examples,) = copy.deepcopy(inputs["examples"])
    examples.uri = str(tmp_path / "examples")
    config = eval_config(tmp_path, thresholds={"NDCG@5": bound}, baseline="pushed", user="user", exclude_seen=True)
    given = {**inputs, "examples": [examples]}
    evaluation, blessing = evaluate(given, config, tmp_path, user="user", exclude_seen=True)
    assert math.isnan(figures(evaluation)["", "candidate", False, "NDCG@5"])
    assert blessing.get_int_custom_property("blessed") == 0


def test_group_auc_is_the_mean_over_users_weighted_by_rows(inputs, tmp_path):
    config = eval_config(tmp_path, metrics=["GroupAUC"], user="user", slices=["city"])
    evaluation, _ = evaluate(inputs, config, tmp_path, user="user")
    found, scores = figures(evaluation), np.pad(scores_of(1), ((0, 0), (0, 1)))
    unknown = tables(1)["item"][50]
    user = tables(1)["user"]
    scores[:, 50] = user[:, 1:] @ unknown[1:] + user[:, 0] + unknown[0]
    for city, key in ((None, ""), (b"a", "a"), (b"b", "b")):
        areas, weights = [], []
        for number, who in enumerate(USERS):
            mine = [row for row in HELD_OUT if row["user"] == who and city in (None, row["city"])]
            labels = [row["label"] for row in mine]
            if len({*labels}) == 2:
                columns = [50 if row["item"] == UNKNOWN else ITEMS.index(row["item"]) for row in mine]
                areas.append(roc_auc_score(labels, scores[number, columns]))
                weights.append(len(mine))
        assert found[key, "", False, "GroupAUC"] == pytest.approx(np.average(areas, weights=weights))


def test_column_of_users_that_no_row_has_is_an_error(inputs, tmp_path):
    with pytest.raises(DataError, match=r"`evaluation.user` is 'who': the first 256 rows .* have no such column"):
        evaluate(inputs, eval_config(tmp_path), tmp_path, user="who")


def test_column_of_users_with_several_values_is_an_error(inputs, tmp_path):
    with pytest.raises(DataError, match=r"a row has [023] values in column 'history'"):
        evaluate(inputs, eval_config(tmp_path), tmp_path, user="history")


def test_rankings_without_vocabularies_are_an_error(inputs, tmp_path):
    given = {key: value for key, value in inputs.items() if key != "vocabularies"}
    with pytest.raises(ConfigError, match="`vocabularies` is not given"):
        evaluate(given, eval_config(tmp_path), tmp_path)

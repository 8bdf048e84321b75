"""Counts of a split, and Recall@k of a two-tower model against scoring every candidate one by one."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.evaluation import count_split, measure_retrieval
from embedding_core.model_inputs import build_model, call_model
from embedding_core.quality_rules import RankingProtocol
from embedding_core.tasks import Task
from embedding_core.training import Inputs, Negatives, TrainingConfig
from embedding_core.training.finished_run import RestoredRun, RunDescription
from embedding_core.training.training_inputs import RowParser
from embedding_core.training_config import Softmax
from tests.support.tf_examples import example, write_rows
from tests.support.vocabularies import write_tokens

USERS, ITEMS = [b"u%d" % n for n in range(6)], [b"i%d" % n for n in range(40)]
VOCABULARIES = {"users": USERS, "items": ITEMS, "shops": [b"s0", b"s1"]}


def feature(name, table, **column):
    return FeatureConfig(name=name, table=table, column=ColumnConfig(name=name, **column))


CONFIG = EmbeddingConfig(
    tables=tuple(
        TableConfig(name=name, vocabulary=name, vocabulary_size=len(tokens) + oov, dim=4, oov_rows=oov)
        for (name, tokens), oov in zip(VOCABULARIES.items(), (0, 2, 1), strict=True)
    ),
    features=(
        feature("user", "users"),
        feature("seen", "items", multivalent=True),
        feature("item", "items"),
        feature("shop", "shops"),
    ),
)
TOWERS = {"query_features": ["user", "seen"], "candidate_features": ["item"]}


def write(path, rows):
    return [write_rows(path, rows)]


def rows(number, seed, positives=1.0):
    chance = np.random.default_rng(seed)
    for _ in range(number):
        item = ITEMS[min(39, chance.geometric(0.08))]
        yield {
            "user": USERS[chance.integers(6)],
            "seen": [ITEMS[n] for n in chance.integers(40, size=chance.integers(3))],
            "item": item,
            "shop": VOCABULARIES["shops"][len(item) % 2],
            "label": float(chance.random() < positives),
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("retrieval")


@pytest.fixture(scope="module")
def inputs(folder):
    files = write_tokens(folder, VOCABULARIES)
    return Inputs(config=CONFIG, vocabularies=files, raw_spec={"label": tf.io.FixedLenFeature([], tf.float32)})


def trained(arguments=TOWERS, negatives=None, module="two_tower", **training):
    module = f"pipelines.models.{module}"
    description = RunDescription(
        model=module, arguments=arguments, config=CONFIG,
        training=TrainingConfig(steps=1, negatives=negatives, **training),
        dense=(), tasks=(Task(),), weight=None, step=1, checkpoint="", vocabularies={},
    )  # fmt: skip
    model = build_model(module, CONFIG, (), arguments)
    for place, variable in enumerate(model.trainable_variables):
        variable.assign(tf.random.stateless_normal(variable.shape, [7, place]))
    return RestoredRun(description, HostEngine(CONFIG, seed=3, with_slots=False), model)


def ranked(run, inputs, row, candidates):
    """Return the candidates (shops by item) by the whole model's logit for each, the largest first."""
    examples = [{**row, "item": item, "shop": shop} for item, shop in candidates.items()]
    batch = RowParser(inputs)(tf.constant([example(features) for features in examples]))
    logits = call_model(run.model, run.engine.lookup(batch["ids"]), {})["label"].numpy()[:, 0]
    return [list(candidates)[place] for place in np.argsort(-logits)]


@pytest.mark.parametrize("candidate_features", [["item"], ["item", "shop"]])
def test_recall_is_what_scoring_every_candidate_gives(folder, inputs, candidate_features):
    run = trained({**TOWERS, "candidate_features": candidate_features}, Negatives(feature="item"))
    train, held_out = list(rows(300, 1)), list(rows(30, 2))
    held_out[3]["item"] = b"never seen"
    files = write(folder / "train", train), write(folder / "eval", held_out)
    found = measure_retrieval(run, inputs, train_files=files[0], eval_files=files[1])
    in_train = {row["item"]: row["shop"] for row in reversed(train)}
    candidates = in_train if len(candidate_features) > 1 else dict.fromkeys(ITEMS, b"s0")
    rankings = [ranked(run, inputs, row, candidates) for row in held_out]
    for k in (10, 50):
        hits = [row["item"] in ranking[:k] for row, ranking in zip(held_out, rankings, strict=True)]
        assert found.metrics[f"Recall@{k}"] == pytest.approx(np.mean(hits))
    assert found.candidates == len(candidates)
    assert found.queries == found.positive_rows == 30
    assert found.unknown == sum(row["item"] not in candidates for row in held_out) > 0
    counts = {item: sum(row["item"] == item for row in train) for item in candidates}
    worst_of_ten = sorted(counts.values())[-10]
    surely = np.mean([counts.get(row["item"], -1) > worst_of_ten for row in held_out])
    perhaps = np.mean([counts.get(row["item"], -1) >= worst_of_ten for row in held_out])
    assert surely <= found.popularity["Recall@10"] <= perhaps
    assert found.popularity["Recall@50"] == pytest.approx(1 - found.unknown / 30)


def test_popularity_counts_positive_rows_of_the_candidate_alone(folder, inputs):
    """The counts of the vocabulary would also include rows of label 0 and the items of the feature `seen`."""
    train = [{"user": b"u0", "seen": [ITEMS[1]] * 9, "item": ITEMS[2], "shop": b"s0", "label": 0.0}] * 5
    train += [{"user": b"u0", "seen": [], "item": ITEMS[n], "shop": b"s0", "label": 1.0} for n in range(20, 30)]
    held_out = [{"user": b"u0", "seen": [], "item": ITEMS[n], "shop": b"s0", "label": 1.0} for n in (1, 2, 20, 29)]
    files = write(folder / "train2", train), write(folder / "eval2", held_out)
    found = measure_retrieval(trained(), inputs, train_files=files[0], eval_files=files[1])
    assert found.popularity["Recall@10"] == 0.5


def test_rows_of_label_0_are_no_queries_and_samples_repeat(folder, inputs):
    held_out = list(rows(500, 5, positives=0.5))
    files = write(folder / "train3", rows(100, 1)), write(folder / "eval3", held_out)

    def measure(**more):
        return measure_retrieval(trained(), inputs, train_files=files[0], eval_files=files[1], **more)

    whole, sample = measure(), measure(protocol=RankingProtocol(queries=50))
    assert whole.queries == whole.positive_rows == sample.positive_rows == sum(row["label"] == 1 for row in held_out)
    assert sample.queries == 50
    again, other = (measure(protocol=RankingProtocol(queries=50), seed=seed) for seed in (0, 1))
    assert sample == again != other
    assert (sample.is_sample, whole.is_sample) == (True, False)
    assert measure(protocol=RankingProtocol(user="user", queries=2)).queries == 2


@pytest.mark.parametrize(("user", "exclude_seen"), [(None, True), ("user", False), ("user", True)])
def test_metrics_of_users_without_what_they_have_seen(folder, inputs, user, exclude_seen):
    """A query is a user's row before the others; seen items are the user's in the train split and those in `seen`.

    A true item that was seen is a miss, for popularity too; the figures with nothing left out stand beside.
    """
    run = trained()
    train, held_out = list(rows(15, 1, positives=0.6)), list(rows(40, 2, positives=0.6))
    held_out[7]["item"], held_out[7]["label"] = b"never seen", 1.0
    files = write(folder / "train5", train), write(folder / "eval5", held_out)
    protocol = RankingProtocol(user=user, exclude_seen=exclude_seen)
    names = ("Recall@7", "NDCG@7", "MRR@7", "HitRate@7")
    found = measure_retrieval(run, inputs, train_files=files[0], eval_files=files[1], protocol=protocol, metrics=names)
    groups, values, every, popular, both, known_truths = {}, [], [], [], 0, 0
    counts = {item: sum(row["item"] == item for row in train if row["label"]) for item in ITEMS}
    for number, row in enumerate(row for row in held_out if row["label"]):
        groups.setdefault(row["user"] if user else number, []).append(row)
    for group in groups.values():
        new = {row["item"] for row in group if row["item"] not in row["seen"]}
        last = min(reversed(group), key=lambda row: len(new & {*row["seen"]}))
        known = {row["item"] for row in group} - {b"never seen"}
        relevant = len(known) + sum(row["item"] == b"never seen" for row in group)
        bought = {row["item"] for row in train if row["label"] and row["user"] == last["user"]} if user else set()
        seen = {*last["seen"], *bought} if exclude_seen else set()
        both += len(seen & known)
        known_truths += len(known)
        ranking = ranked(run, inputs, last, dict.fromkeys(ITEMS, last["shop"]))
        for order, into in (([item for item in ranking if item not in seen], values), (ranking, every)):
            hits = [item in known for item in order[:7]]
            gains = 1 / np.log2(np.arange(2, 9))
            first = 1 / (hits.index(True) + 1) if any(hits) else 0
            into.append([sum(hits) / relevant, gains @ hits / gains[:relevant].sum(), first, any(hits)])
        left = [counts[item] for item in ITEMS if item not in seen]
        shares = [_share_within(7, counts[item], left) for item in known - seen]
        popular.append(sum(shares) / relevant)
    assert list(found.metrics.values()) == pytest.approx(np.mean(values, axis=0))
    assert found.popularity["Recall@7"] == pytest.approx(np.mean(popular))
    assert list(found.nothing_left_out.values()) == pytest.approx(np.mean(every, axis=0) if both else [])
    assert found.popularity_nothing_left_out.keys() == found.nothing_left_out.keys()
    assert (found.queries, found.seen_truths, found.unknown) == (len(groups), both, 1)
    assert found.ranked == known_truths - both
    assert bool(both) == exclude_seen
    assert dict(found.curves["this model"])[10] >= found.metrics["Recall@7"]


def _share_within(k, count, counts):
    """Return the probability that a candidate of this count is among the first k in a random order of equal counts."""
    above, equal = sum(other > count for other in counts), counts.count(count)
    return min(max(k - above, 0) / equal, 1)


def test_other_targets_of_a_user_are_not_seen(folder, inputs):
    """Each user buys four items after the split, one of them again; histories hold all earlier items, in any order."""
    chance, train, held_out, expected = np.random.default_rng(3), [], [], {}
    for user in USERS:
        bought = [ITEMS[n] for n in chance.permutation(40)[:6]]
        events = [*bought, bought[0]]
        made = [{"user": user, "seen": events[:n], "item": events[n], "shop": b"s0", "label": 1.0} for n in range(7)]
        train, held_out = [*train, *made[:3]], [*held_out, *made[3:]]
        expected[user] = made[3]
    held_out = [held_out[n] for n in chance.permutation(len(held_out))]
    files = write(folder / "train8", train), write(folder / "eval8", held_out)
    protocol = RankingProtocol(user="user", exclude_seen=True)
    found = measure_retrieval(trained(), inputs, train_files=files[0], eval_files=files[1], protocol=protocol)
    values, run = [], trained()
    for user, row in expected.items():
        seen = {event["item"] for event in train if event["user"] == user}
        ranking = [item for item in ranked(run, inputs, row, dict.fromkeys(ITEMS, b"s0")) if item not in seen]
        values.append(np.mean([event["item"] in ranking[:10] for event in held_out if event["user"] == user]))
    assert found.metrics["Recall@10"] == pytest.approx(np.mean(values))
    assert (found.ranked, found.seen_truths) == (18, 6)


def test_softmax_names_the_candidate_too(folder, inputs):
    towers = {**TOWERS, "candidate_features": ["item", "shop"]}
    files = write(folder / "train5", rows(60, 4)), write(folder / "eval5", rows(30, 5))
    by_softmax, by_negatives = (
        measure_retrieval(trained(towers, **source), inputs, train_files=files[0], eval_files=files[1])
        for source in ({"softmax": Softmax(feature="item")}, {"negatives": Negatives(feature="item")})
    )
    assert by_softmax == by_negatives
    assert by_softmax.queries == 30


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: trained({}, module="ranking"), "no query and candidate towers"),
        (lambda: trained({"query_features": ["user"], "candidate_features": ["seen"]}), "several candidates"),
        (lambda: trained({**TOWERS, "candidate_features": ["item", "shop"]}), "training.negatives.feature"),
    ],
)
def test_what_cannot_be_measured_says_why(folder, inputs, run, words):
    rows_twice = [dict(row, seen=[ITEMS[0], ITEMS[1]]) for row in rows(5, 1)]
    files = write(folder / "train4", rows_twice)
    assert words in measure_retrieval(run(), inputs, train_files=files, eval_files=files)


def test_split_is_counted_exactly_with_and_without_oov_rows(folder, inputs):
    held_out = [
        {"user": b"u1", "seen": [b"i1", b"new", b"newer"], "item": b"i3", "shop": b"s0", "label": 1.0},
        {"user": b"who", "item": b"new", "shop": b"", "label": 0.0},
        {"seen": [b"new"], "item": b"i4", "shop": b"s1", "label": 1.0},
    ]
    counts = count_split(inputs, write(folder / "counted", held_out))
    label = counts.labels["label"]
    assert (counts.rows, label.rows, label.positives, label.negatives) == (3, 3, 2, 1)
    found = {name: dataclasses.astuple(counted) for name, counted in counts.features.items()}
    assert found == {"user": (1, 2, 1, 1), "seen": (1, 4, 3, 2), "item": (0, 3, 1, 1), "shop": (1, 2, 0, 0)}

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.optimizers import SGD
from embedding_core.tasks import Task
from embedding_core.training.drawn_candidates import candidate_sampler
from embedding_core.training.step import new_trainable
from embedding_core.training.training_inputs import Batch
from embedding_core.training_config import Softmax, Training, TrainingConfig

CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="i", vocabulary_size=6, dim=2, oov_rows=1, optimizer=SGD(learning_rate=1.0)),
        TableConfig(name="u", vocabulary_size=9, dim=2, optimizer=SGD(learning_rate=1.0)),
    ),
    features=(FeatureConfig(name="item", table="i"), FeatureConfig(name="user", table="u")),
)
COUNTS = np.array([50, 30, 10, 8, 2])


def batch():
    return Batch(
        ids={
            "item": tf.ragged.constant([[0], [5], []], tf.int64),
            "user": tf.ragged.constant([[1], [2, 3], [4]], tf.int64),
        },
        dense={"price": tf.ones([3, 1])},
        label=tf.ones([3, 1]),
        weight=tf.ones([3, 1]) * 2,
        rows=tf.constant(3),
    )


def sampled(step=0, seed=1, hosts=1, counts=COUNTS, labels=1, **settings):
    softmax = Softmax(feature="item", **settings)
    add = candidate_sampler(softmax, CONFIG, seed=seed, hosts=hosts, counts=counts)
    return add(tf.constant(step, tf.int64), Batch(**{**batch(), "label": tf.ones([3, labels])}))


def test_rows_get_their_candidate_and_how_often_it_is_expected():
    found = sampled()["softmax"]
    assert found["candidate"].numpy().tolist() == [[0], [5], [-1]]
    share = 3 / (COUNTS.sum() + 1)  # the row for unknown tokens counts as a token that occurs once
    np.testing.assert_allclose(np.exp(found["log_q"][:2, 0]), [50 * share, 1 * share], rtol=1e-5)
    assert sampled(correction=False)["softmax"]["log_q"].numpy().tolist() == [[0.0]] * 3


def test_drawn_candidates_have_label_0_and_no_other_features():
    found = sampled(sampled=4)
    assert found["label"].numpy()[:, 0].tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert found["weight"].numpy()[:, 0].tolist() == [2, 2, 2, 1, 1, 1, 1]
    assert found["dense"]["price"].numpy()[:, 0].tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert found["ids"]["user"].to_list() == [[1], [2, 3], [4], [], [], [], []]
    drawn = [row[0] for row in found["ids"]["item"].to_list()[3:]]
    assert found["softmax"]["candidate"].numpy()[3:, 0].tolist() == drawn
    assert set(drawn) <= set(range(5))
    assert int(found["rows"]) == 3
    expected = 3 * COUNTS / (COUNTS.sum() + 1) + 4 / 5
    np.testing.assert_allclose(np.exp(found["softmax"]["log_q"][3:, 0]), expected[drawn], rtol=1e-5)


def test_drawn_candidates_have_none_of_several_labels():
    np.testing.assert_array_equal(sampled(sampled=2, labels=2)["label"], [[1, 1]] * 3 + [[np.nan, np.nan]] * 2)


def test_draws_follow_seed_step_and_distribution():
    items = lambda **given: sampled(sampled=2000, **given)["softmax"]["candidate"].numpy()[3:, 0]  # noqa: E731
    np.testing.assert_array_equal(items(), items())
    assert (items() != items(step=1)).any()
    assert (items() != items(seed=2)).any()
    np.testing.assert_allclose(np.bincount(items(), minlength=5) / 2000, 0.2, atol=0.04)
    by_count = np.bincount(items(distribution="count"), minlength=5) / 2000
    np.testing.assert_allclose(by_count, COUNTS / 100, atol=0.04)


@pytest.mark.parametrize(("hosts", "of_host", "of_all"), [(2, 2, 4), (3, 2, 6)])
def test_hosts_share_the_draws_and_every_draw_is_expected(hosts, of_host, of_all):
    found = sampled(sampled=4, hosts=hosts)
    drawn = found["softmax"]["candidate"].numpy()[3:, 0]
    assert len(drawn) == of_host
    expected = 3 * hosts * COUNTS / (COUNTS.sum() + 1) + of_all / 5
    np.testing.assert_allclose(np.exp(found["softmax"]["log_q"][3:, 0]), expected[drawn], rtol=1e-5)


@pytest.mark.parametrize(("in_batch", "trained"), [(True, {0, 1, 2, 3, 4}), (False, {0, 4})])
def test_rows_of_label_0_compete_only_with_in_batch(in_batch, trained):
    """Only token 4 is drawn; the row of label 1 has token 0, and three rows of label 0 have the other tokens."""
    softmax = {"feature": "item", "in_batch": in_batch, "sampled": 2, "distribution": "count"}
    training = TrainingConfig(steps=1, softmax=softmax)
    towers = {"query_features": ["user"], "candidate_features": ["item"]}
    model = {"model": "pipelines.models.two_tower", "arguments": towers, "dense": (), "tasks": (Task(),)}
    trainable = new_trainable(CONFIG, training, **model, rows=6, steps=1, replicated=False)
    add = candidate_sampler(training.softmax, CONFIG, seed=0, hosts=1, counts=np.array([0, 0, 0, 0, 9]))
    ids = tf.RaggedTensor.from_tensor(tf.range(4, dtype=tf.int64)[:, tf.newaxis])
    label = tf.constant([[1.0], [0.0], [0.0], [0.0]])
    made = Batch(ids={"item": ids, "user": ids}, dense={}, label=label, weight=tf.ones([4, 1]), rows=tf.constant(4))
    items = trainable.tables.variables["i"]
    before = items.numpy()
    trainable.train_replica(add(tf.constant(0, tf.int64), made))
    assert set(np.flatnonzero((items.numpy() != before).any(axis=1))) == trained


def test_candidate_that_is_never_drawn_counts_as_one_of_a_row():
    """Only drawn candidates compete; the rows' candidates are token 0, which is not drawn, and an unknown token."""
    settings = {"in_batch": False, "sampled": 6, "distribution": "count"}
    found = sampled(counts=np.array([0, 2, 2, 2, 0]), **settings)["softmax"]
    np.testing.assert_allclose(np.exp(found["log_q"][:2, 0]), [6 / 6, 6 / 6], rtol=1e-5)


@pytest.mark.parametrize("counts", [None, COUNTS[:3], np.zeros(5, np.int64)])
def test_counts_that_do_not_fit_are_refused(counts):
    with pytest.raises(ConfigError, match="needs the counts of the 5 tokens"):
        sampled(counts=counts)


def test_features_that_are_no_candidate_are_refused():
    item = FeatureConfig(name="item", table="i", column=ColumnConfig(name="items", multivalent=True))
    several = CONFIG.replace(features=(item, *CONFIG.features[1:]))
    with pytest.raises(ConfigError, match="it must be one of the features item, user"):
        candidate_sampler(Softmax(feature="x"), CONFIG, seed=0, hosts=1, counts=COUNTS)
    with pytest.raises(ConfigError, match="column 'items' holds several tokens a row, and a row has one candidate"):
        candidate_sampler(Softmax(feature="item"), several, seed=0, hosts=1, counts=COUNTS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"softmax": {"feature": "item", "in_batch": False}}, "there would be no negatives"),
        ({"softmax": "item", "negatives": "item"}, "draw candidates with `softmax.sampled`"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Training.from_mapping(settings)

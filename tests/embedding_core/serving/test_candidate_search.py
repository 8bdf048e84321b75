"""Searches of all inverted lists are exact, searches of few find most of the best, and lists are deterministic."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.serving.candidate_search import ExactSearch, ListSearch, divide


def drawn(rows, seed=1, centers=20, dim=8):
    generator = np.random.default_rng(seed)
    middle = np.random.default_rng(5).normal(size=(centers, dim))
    return (middle[generator.integers(centers, size=rows)] + 0.3 * generator.normal(size=(rows, dim))).astype(
        np.float32
    )


VECTORS, QUERIES = drawn(2000), tf.constant(drawn(30, seed=2))


def test_lists_hold_each_row_once_and_are_the_same_again():
    lists, again = divide(VECTORS, 50, seed=3), divide(VECTORS, 50, seed=3)
    assert all(np.array_equal(ranked, other) for ranked, other in zip(lists, again, strict=True))
    assert sorted(lists.order) == list(range(len(VECTORS)))
    assert lists.starts[0] == 0
    assert lists.starts[-1] == len(VECTORS)
    assert (np.diff(lists.starts) > 0).all()
    first = VECTORS[lists.order[: lists.starts[1]]]
    np.testing.assert_allclose(lists.means[0], first.mean(0), rtol=1e-5)
    np.testing.assert_allclose(lists.variances[0], first.var(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_lists_of_equal_vectors_are_not_empty(rows):
    lists = divide(np.ones((rows, 4), np.float32), min(5, rows))
    assert lists.starts.tolist() == [0, rows]
    assert lists.variances.tolist() == [[0.0] * 4]


def test_search_of_all_lists_is_exact():
    exact, by_list = ExactSearch(VECTORS), ListSearch.of(VECTORS, lists=40, probes=40)
    (scores, rows), (found, found_rows) = exact.best(QUERIES, 10), by_list.best(QUERIES, 10)
    np.testing.assert_allclose(found, scores, rtol=1e-5)
    assert np.array_equal(rows, found_rows)


def test_search_of_few_lists_finds_most_of_the_best():
    exact, by_list = ExactSearch(VECTORS), ListSearch.of(VECTORS, lists=40, probes=4)
    pairs = zip(exact.best(QUERIES, 10)[1].numpy(), by_list.best(QUERIES, 10)[1].numpy(), strict=True)
    recall = np.mean([len(set(wanted) & set(found)) / 10 for wanted, found in pairs])
    assert 0.8 < recall < 1.0


def test_long_vectors_are_found_in_a_list_of_short_ones():
    """The list of the long vector has the lower mean score, but its variance must rank it first."""
    vectors = np.concatenate([np.full((500, 2), 1.0), np.full((500, 2), -1.0)]).astype(np.float32)
    vectors[700] = [30.0, -30.0]
    search = ListSearch.of(vectors, lists=2, probes=1)
    query = tf.constant([[1.0, -0.9]])
    assert search.best(query, 1)[1].numpy().tolist() == [[700]]


@pytest.mark.parametrize("search", [ExactSearch(VECTORS), ListSearch.of(VECTORS, lists=40, probes=3)])
def test_search_among_rows_is_exact(search):
    rows = tf.constant([[4, 9, -1, 1500], [-1, -1, -1, -1]], tf.int64)
    scores, found = search.best_among(QUERIES[:2], rows, 6)
    products = VECTORS[[4, 9, 1500]] @ QUERIES[0].numpy()
    order = np.argsort(-products)
    assert found.numpy().tolist() == [np.array([4, 9, 1500])[order].tolist() + [-1] * 3, [-1] * 6]
    np.testing.assert_allclose(scores[0, :3], products[order], rtol=1e-5)
    assert np.isneginf(scores[0, 3:]).all()


def test_equal_scores_of_exact_search_are_in_vocabulary_order():
    search = ExactSearch(np.ones((9, 2), np.float32))
    assert search.best(tf.ones([1, 2]), 4)[1].numpy().tolist() == [[0, 1, 2, 3]]
    assert search.best_among(tf.ones([1, 2]), tf.constant([[3, 5, 7]], tf.int64), 2)[1].numpy().tolist() == [[3, 5]]

"""Finds the candidates with the largest dot products with queries, among all candidates or given ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from embedding_core.serving.inverted_lists import InvertedLists, Places, Vectors, divide

_SPREAD = 2.0
"""How many standard deviations above its mean score a list is expected to reach."""
_IN_PARALLEL = 8
_CPU = "/device:CPU:0"

Pair: TypeAlias = tuple[tf.Tensor, tf.Tensor]
Size: TypeAlias = tf.Tensor | int


class ExactSearch(tf.Module):
    """Compares each query with all candidates, by one matrix product per batch."""

    def __init__(self, vectors: Vectors) -> None:
        """Hold the vectors `[N, n]` of the candidates."""
        super().__init__()
        self.vectors = _constant(vectors, "candidates")

    def best(self, queries: tf.Tensor, k: Size) -> Pair:
        """Find the k <= N best candidates of queries `[B, n]`: scores and rows `[B, k]`, equal scores by row."""
        scores, rows = tf.math.top_k(tf.matmul(queries, self.vectors, transpose_b=True), k)
        return scores, tf.cast(rows, tf.int64)

    def best_among(self, queries: tf.Tensor, rows: tf.Tensor, k: Size) -> Pair:
        """Find the best of the candidates `rows` `[B, A]`: scores and rows `[B, k]`.

        Rows of -1 are not candidates. If there are fewer than k candidates, the result is padded with rows of -1 and
        scores of -inf.
        """
        return _best_of_places(self.vectors, queries, rows, k)


class ListSearch(tf.Module):
    """Compares each query with the candidates of some inverted lists.

    Lists are ranked by the score that their best candidates are expected to reach: the mean of the list's scores plus
    two standard deviations, as if the dimensions were independent. Dot products prefer long vectors to near
    ones, so this ranking needs only a fraction of the lists that a ranking by the mean needs.
    """

    def __init__(self, vectors: Vectors, lists: InvertedLists, probes: int) -> None:
        """Store the vectors `[N, n]` of the candidates in the order of the lists."""
        super().__init__()
        self.vectors = _constant(vectors[lists.order], "candidates")
        self.means = _constant(lists.means, "means")
        self.variances = _constant(lists.variances, "variances")
        self.starts = _constant(lists.starts, "starts")
        self.row_of_place = _constant(lists.order, "row_of_place")
        self.place_of_row = _constant(lists.order.argsort(), "place_of_row")
        self._probes = min(probes, len(lists.means))
        self._count = len(lists.order)

    @classmethod
    def of(cls, vectors: Vectors, lists: int, probes: int) -> ListSearch:
        """Divide the candidates into lists."""
        return cls(vectors, divide(vectors, lists), probes)

    def best(self, queries: tf.Tensor, k: Size) -> Pair:
        """Find k <= N candidates of queries `[B, n]`: exact scores and rows `[B, k]`, best first.

        If the probed lists of a query hold fewer than k candidates, the query is compared with all candidates.
        """
        expected = tf.matmul(queries, self.means, transpose_b=True)
        spread = tf.sqrt(tf.matmul(queries * queries, self.variances, transpose_b=True))
        lists = tf.math.top_k(expected + _SPREAD * spread, self._probes, sorted=False).indices

        def of_one(given: Pair) -> Pair:
            query, probed = given
            places = tf.ragged.range(tf.gather(self.starts, probed), tf.gather(self.starts, probed + 1)).flat_values
            places = tf.cond(tf.size(places) < k, lambda: tf.range(self._count, dtype=tf.int64), lambda: places)
            scores, found = tf.math.top_k(tf.linalg.matvec(tf.gather(self.vectors, places), query), k)
            return scores, tf.gather(places, found)

        scores, places = _for_each(of_one, queries, lists, k)
        return scores, tf.gather(self.row_of_place, places)

    def best_among(self, queries: tf.Tensor, rows: tf.Tensor, k: Size) -> Pair:
        """Find the best of the candidates `rows` `[B, A]`, exactly; see `ExactSearch.best_among`."""
        places = tf.where(rows < 0, rows, tf.gather(self.place_of_row, tf.maximum(rows, 0)))
        scores, places = _best_of_places(self.vectors, queries, places, k)
        return scores, tf.where(places < 0, places, tf.gather(self.row_of_place, tf.maximum(places, 0)))


def _constant(values: Vectors | Places, name: str) -> tf.Variable:
    with tf.device(_CPU):
        return tf.Variable(values, trainable=False, name=name)


def _best_of_places(vectors: tf.Variable, queries: tf.Tensor, places: tf.Tensor, k: Size) -> Pair:
    def of_one(given: Pair) -> Pair:
        query, own = given
        scores = tf.linalg.matvec(tf.gather(vectors, tf.maximum(own, 0)), query)
        scores = tf.where(own < 0, -float("inf"), scores)
        found = tf.math.top_k(tf.pad(scores, [[0, k]], constant_values=-float("inf")), k)
        return found.values, tf.gather(tf.pad(own, [[0, k]], constant_values=-1), found.indices)

    return _for_each(of_one, queries, places, k)


def _for_each(function: Callable[[Pair], Pair], queries: tf.Tensor, others: tf.Tensor, k: Size) -> Pair:
    """Call a function that returns scores and places `[k]` for each query.

    With one query per call, memory does not grow with the batch, and threads share the queries.
    """

    def call() -> Pair:
        kinds = tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.int64)
        found: Pair = tf.map_fn(
            function, (queries, others), fn_output_signature=kinds, parallel_iterations=_IN_PARALLEL
        )
        return found

    # tf.map_fn cannot stack the results of no calls if their width is not known.
    none = tf.zeros([0, k]), tf.zeros([0, k], tf.int64)
    found: Pair = tf.cond(tf.shape(queries)[0] > 0, call, lambda: none)
    return found

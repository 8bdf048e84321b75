"""Finds the best candidates of a query, as tokens: among all or given ones, in all vectors or in some lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tf_keras

from embedding_core.columns import TokenTable
from embedding_core.model_inputs import token_candidate
from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving.table_blocks import vocabulary_file
from embedding_core.serving_config import TopK

# Divides vectors into lists by k-means; a search for the largest dot products then reads only some lists.

Vectors: TypeAlias = npt.NDArray[np.float32]
Places: TypeAlias = npt.NDArray[np.int64]

_ROUNDS = 5
_SAMPLED_PER_LIST = 64
_VECTORS_PER_STEP = 4096


class InvertedLists(NamedTuple):
    """A partition of vectors into lists.

    Attributes:
      order: int64 `[N]`, the row of each place: the rows list by list, ascending within a list.
      starts: int64 `[lists + 1]`, the first place of each list, and the number of vectors.
      means: float32 `[lists, n]`, the mean of each list's vectors.
      variances: float32 `[lists, n]`, the variance of each list's vectors in each dimension.
    """

    order: Places
    starts: Places
    means: Vectors
    variances: Vectors


def divide(vectors: Vectors, lists: int, seed: int = 0) -> InvertedLists:
    """Divide vectors into lists by k-means (Lloyd, 1982): the same vectors and seed give the same lists.

    The centers are computed from a sample of 64 vectors per list in 5 rounds. The time is that of
    `(5 * 64 * lists + N) * lists` dot products; the memory beyond the vectors is that of the sample and of the result.

    Args:
      vectors: float32 `[N, n]`, finite.
      lists: number of lists, at most N; lists that would be empty are left out.
      seed: seed of the sample and of the first centers.
    """
    generator = np.random.default_rng(seed)
    size = min(len(vectors), _SAMPLED_PER_LIST * lists)
    sample = vectors[np.sort(generator.choice(len(vectors), size, replace=False))]
    centers = sample[np.sort(generator.choice(size, lists, replace=False))]
    for _ in range(_ROUNDS):
        nearest = _nearest(sample, centers)
        used, order, starts = _grouped(nearest)
        centers[used] = _means(sample[order], starts)
    _, order, starts = _grouped(_nearest(vectors, centers))
    means, variances = _moments(vectors, order, starts)
    return InvertedLists(order, starts, means, variances)


def _nearest(vectors: Vectors, centers: Vectors) -> Places:
    """Return the center nearest to each vector by Euclidean distance, the first one if distances are equal."""
    transposed = np.ascontiguousarray(centers.T)
    halves = np.einsum("ln,ln->l", centers, centers) / 2
    parts = (vectors[start : start + _VECTORS_PER_STEP] for start in range(0, len(vectors), _VECTORS_PER_STEP))
    return np.concatenate([np.argmax(part @ transposed - halves, axis=1) for part in parts])


def _grouped(groups: Places) -> tuple[Places, Places, Places]:
    """Return the groups that are not empty, the rows group by group, and the starts of the groups, with the end."""
    used, counts = np.unique(groups, return_counts=True)
    return used, np.argsort(groups, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


def _means(grouped: Vectors, starts: Places) -> Vectors:
    sums: Vectors = np.add.reduceat(grouped, starts[:-1], axis=0)
    return sums / np.diff(starts)[:, np.newaxis].astype(np.float32)


def _moments(vectors: Vectors, order: Places, starts: Places) -> tuple[Vectors, Vectors]:
    """Return the mean and the variance of each list, computed list by list: a copy of all vectors is not needed."""
    means = np.empty((len(starts) - 1, vectors.shape[1]), np.float32)
    variances = np.empty_like(means)
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        rows = vectors[order[start:end]]
        means[number], variances[number] = rows.mean(axis=0), rows.var(axis=0)
    return means, variances


# Finds the candidates with the largest dot products with queries, among all candidates or given ones.

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


# Finds the best candidates of a query, as tokens: among all, among given ones, or without excluded ones.

_CANDIDATES_PER_STEP = 65536
_NONE = -1  # the row that stands for no candidate

Answer: TypeAlias = dict[str, tf.Tensor]


class CandidateIndex(tf.Module):
    """Vectors and tokens of all candidates. An answer is `tokens` and `scores` `[B, min(k, candidates)]`, best first.

    If fewer candidates remain, the rest of the row is the token "" with the score -inf. If the query's vector is not
    finite, because its input row lacks a number that Transform requires, the whole row is "" with the score NaN.
    """

    def __init__(
        self, search: ExactSearch | ListSearch, count: int, vocabulary_file: str, ids: TokenTable, k: int
    ) -> None:
        """Hold the candidates: the first `count` tokens of a vocabulary, in the order of the file."""
        super().__init__()
        self.search = search
        keys = tf.lookup.TextFileInitializer(
            vocabulary_file,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            vocab_size=count,
        )
        self.tokens = tf.lookup.StaticHashTable(keys, default_value="")
        self.ids = ids
        self._count = count
        self._k = min(k, count)

    @classmethod
    def of(
        cls, module: ServingModule, model: tf_keras.Model, vocabularies: Mapping[str, str], settings: TopK
    ) -> CandidateIndex | None:
        """Make the index if a candidate is a token of one feature (`token_candidate`); else None."""
        feature = token_candidate(model, module.config)
        if feature is None:
            return None
        table = module.config.table_of(feature)
        count = table.vocabulary_size - table.oov_rows
        # With every combiner, the vector of a single token is its row.
        slices = module.rows_of(table.name).slices(_CANDIDATES_PER_STEP)
        parts = [model.candidate_vectors({feature: rows}).numpy() for rows in slices]
        vectors, lists = np.concatenate(parts)[:count], settings.approximate.lists_of(count)
        search = ExactSearch(vectors) if lists is None else ListSearch.of(vectors, lists, settings.approximate.probes)
        file, ids = vocabulary_file(table, vocabularies), module.token_tables[table.name]
        return cls(search, count, file, ids, settings.k)

    def top(self, queries: tf.Tensor) -> Answer:
        """Find the best candidates of queries `[B, n]`."""
        finite, queries = _finite(queries)
        return self._answer(*self.search.best(queries, self._k), finite)

    def top_filtered(self, queries: tf.Tensor, exclude: tf.Tensor, among: tf.Tensor) -> Answer:
        """Find the best allowed candidates of queries `[B, n]`.

        Args:
          queries: float32 `[B, n]`.
          exclude: tokens `[B, E]` that a row's answer must not contain. "" and tokens that are not candidates have no
            effect.
          among: tokens `[B, A]`; a row's answer is chosen from these alone, by exact search. Tokens that are not
            candidates are ignored, but a row with only such tokens gets no candidate. "" is padding: a row of "" is
            not restricted.
        """
        finite, queries = _finite(queries)
        excluded = tf.sort(self._rows_of(exclude), axis=1)
        restricted = tf.reduce_any(tf.not_equal(among, ""), axis=1)
        free, bound = (tf.where(rows)[:, 0] for rows in (~restricted, restricted))
        wide = tf.minimum(self._k + tf.shape(exclude)[1], self._count)
        found = self.search.best(tf.gather(queries, free), wide)
        of_free = self._without(*found, tf.gather(excluded, free))
        named = _distinct(tf.gather(self._rows_of(among), bound))
        kept = tf.where(_contains(tf.gather(excluded, bound), named), tf.constant(_NONE, tf.int64), named)
        of_bound = self.search.best_among(tf.gather(queries, bound), kept, self._k)
        order = [tf.cast(free, tf.int32), tf.cast(bound, tf.int32)]
        scores, rows = (
            tf.dynamic_stitch(order, [first, other]) for first, other in zip(of_free, of_bound, strict=True)
        )
        return self._answer(scores, rows, finite)

    def _rows_of(self, tokens: tf.Tensor) -> tf.Tensor:
        """Return the rows of tokens, int64; -1 for those that are not candidates."""
        ids = self.ids.ids_of(tokens)
        return tf.where(ids < self._count, ids, tf.constant(_NONE, tf.int64))

    def _without(self, scores: tf.Tensor, rows: tf.Tensor, excluded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Take the first k of sorted candidates that are not excluded."""
        gone = _contains(excluded, rows)
        best = tf.math.top_k(tf.where(gone, -float("inf"), scores), self._k)
        kept = tf.where(gone, tf.constant(_NONE, tf.int64), rows)
        return best.values, tf.gather(kept, best.indices, batch_dims=1)

    def _answer(self, scores: tf.Tensor, rows: tf.Tensor, finite: tf.Tensor) -> Answer:
        return {
            "tokens": self.tokens.lookup(tf.where(finite, rows, tf.constant(_NONE, tf.int64))),
            "scores": tf.where(finite, scores, float("nan")),
        }


def _finite(queries: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return which rows are finite, bool `[B, 1]`, and the queries with zeros in the other rows."""
    finite = tf.reduce_all(tf.math.is_finite(queries), axis=1, keepdims=True)
    return finite, tf.where(finite, queries, tf.zeros_like(queries))


def _distinct(rows: tf.Tensor) -> tf.Tensor:
    """Sort each row of `[B, A]`, and replace all but the first of equal values by -1."""
    ordered = tf.sort(rows, axis=1)
    before = tf.pad(ordered, [[0, 0], [1, 0]], constant_values=_NONE)[:, :-1]
    return tf.where(ordered == before, tf.constant(_NONE, tf.int64), ordered)


def _contains(ordered: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return whether each of `values` `[B, W]` is in the same row of `ordered` `[B, E]`; False for -1."""
    padded = tf.pad(ordered, [[0, 0], [0, 1]], constant_values=tf.int64.max)
    # tf.searchsorted refuses values of width 0.
    places = tf.raw_ops.LowerBound(sorted_inputs=padded, values=values, out_type=tf.int64)
    found = tf.gather(padded, places, batch_dims=1)
    return (found == values) & (values >= 0)

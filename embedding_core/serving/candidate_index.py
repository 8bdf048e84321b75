"""Finds the best candidates of a query, as tokens: among all, among given ones, or without excluded ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import tensorflow as tf
import tf_keras

from embedding_core.columns.ids import TokenTable
from embedding_core.model_inputs import token_candidate
from embedding_core.serving.candidate_search import ExactSearch, ListSearch
from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving.table_blocks import vocabulary_file
from embedding_core.top_k_config import TopK

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
        scores, rows = (tf.dynamic_stitch(order, [one, other]) for one, other in zip(of_free, of_bound, strict=True))
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

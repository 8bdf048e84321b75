"""Builds the signatures of a two-tower model: vectors of both towers, and the top k candidates of a query."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving.signatures import Signature, signature_of_tensors, vectors

_CANDIDATES_PER_STEP = 65536


def two_tower_signatures(
    module: ServingModule, model: tf_keras.Model, vocabularies: Mapping[str, str], k: int
) -> dict[str, Signature]:
    """Make `query`, `candidate` and, if each candidate is one token of one feature, `top_k`."""
    query, query_columns = vectors(module, model.query_vectors, model.query_features)
    candidate, candidate_columns = vectors(module, model.candidate_vectors, model.candidate_features)
    signatures = {
        "query": signature_of_tensors(lambda named: {"vector": query(named)}, query_columns),
        "candidate": signature_of_tensors(lambda named: {"vector": candidate(named)}, candidate_columns),
    }
    index = CandidateIndex.of(module, model, vocabularies)
    if index is not None:
        module.candidates = index
        signatures["top_k"] = signature_of_tensors(lambda named: index.top(query(named), k), query_columns)
    return signatures


class CandidateIndex(tf.Module):
    """Vectors of all candidates, searched exactly by one matrix product per batch."""

    def __init__(self, candidates: tf.Tensor, vocabulary_file: str) -> None:
        """Hold the vectors `[tokens, n]` of a vocabulary file's tokens, in the order of the file."""
        super().__init__()
        with tf.device("/device:CPU:0"):
            self.vectors = tf.Variable(candidates, trainable=False, name="candidates")
        keys = tf.lookup.TextFileInitializer(
            vocabulary_file,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            vocab_size=int(candidates.shape[0]),
        )
        self.tokens = tf.lookup.StaticHashTable(keys, default_value="")

    @classmethod
    def of(cls, module: ServingModule, model: tf_keras.Model, vocabularies: Mapping[str, str]) -> CandidateIndex | None:
        """Make the index if the candidate tower reads a single feature with a vocabulary, not a sequence; else None."""
        names = tuple(model.candidate_features)
        features = {feature.name: feature for feature in module.config.features}
        if len(names) != 1 or names[0] not in features or features[names[0]].max_sequence_length:
            return None
        table = module.config.table_of(names[0])
        count = table.vocabulary_size - table.oov_rows
        if table.vocabulary is None or count == 0:
            return None
        # With every combiner, the vector of a single token is its row.
        rows = module.rows_of(table.name).read()
        parts = [
            model.candidate_vectors({names[0]: rows[start : min(start + _CANDIDATES_PER_STEP, count)]})
            for start in range(0, count, _CANDIDATES_PER_STEP)
        ]
        return cls(tf.concat(parts, 0), str(vocabularies[table.vocabulary]))

    def top(self, queries: tf.Tensor, k: int) -> dict[str, tf.Tensor]:
        """Find the best candidates of queries `[B, n]`: tokens and logits, `[B, min(k, tokens)]`, best first."""
        scores, rows = tf.math.top_k(
            tf.matmul(queries, self.vectors, transpose_b=True), min(k, int(self.vectors.shape[0]))
        )
        return {"tokens": self.tokens.lookup(tf.cast(rows, tf.int64)), "scores": scores}

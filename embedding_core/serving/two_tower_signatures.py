"""Builds the signatures of a two-tower model: vectors of both towers, and the top k candidates of a query."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

from embedding_core.columns.raw_columns import Columns
from embedding_core.errors import ConfigError
from embedding_core.serving.candidate_index import CandidateIndex
from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving.signatures import Signature, signature_of_tensors, vectors
from embedding_core.top_k_config import TopK

FILTERS = ("exclude", "among")
"""The inputs of `top_k_filtered` besides those of the query: string `[B, n]`, padded with ""."""


def two_tower_signatures(
    module: ServingModule, model: tf_keras.Model, vocabularies: Mapping[str, str], settings: TopK
) -> dict[str, Signature]:
    """Make `query`, `candidate` and, if each candidate is one token of one feature, `top_k` and `top_k_filtered`.

    Raises:
      ConfigError: a column of the query has the name of an input of `top_k_filtered`.
    """
    query, query_columns = vectors(module, model.query_vectors, model.query_features)
    candidate, candidate_columns = vectors(module, model.candidate_vectors, model.candidate_features)
    specs = query_columns.named_specs
    signatures = {
        "query": signature_of_tensors(lambda named: {"vector": query(named)}, specs),
        "candidate": signature_of_tensors(lambda named: {"vector": candidate(named)}, candidate_columns.named_specs),
    }
    index = CandidateIndex.of(module, model, vocabularies, settings)
    if index is not None:
        module.candidates = index
        signatures["top_k"] = signature_of_tensors(lambda named: index.top(query(named)), specs)
        signatures["top_k_filtered"] = signature_of_tensors(
            lambda named: index.top_filtered(query(named), *(named[name] for name in FILTERS)),
            {**specs, **_filters(query_columns)},
        )
    return signatures


def _filters(columns: Columns) -> dict[str, tf.TensorSpec]:
    for name in FILTERS:
        if name in columns.inputs:
            raise ConfigError(
                f"column {columns.inputs[name]!r} of the query would be the input {name!r}, which is a filter of the "
                "signature `top_k_filtered`: rename the column."
            )
    return {name: tf.TensorSpec([None, None], tf.string, name) for name in FILTERS}

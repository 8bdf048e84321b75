"""Vocabularies: the tokens that rows belong to, with their counts and a digest. Loads no TensorFlow."""

from embedding_core.vocabulary.vocabulary import (
    Evolution,
    FeatureSummary,
    Vocabulary,
    description_of,
    drift_of,
    length_percentiles,
    load_vocabularies,
    load_vocabulary,
    representable,
    save_set,
    save_vocabulary,
    total_order,
    vocabulary_from_counts,
)

__all__ = [
    "Evolution",
    "FeatureSummary",
    "Vocabulary",
    "description_of",
    "drift_of",
    "length_percentiles",
    "load_vocabularies",
    "load_vocabulary",
    "representable",
    "save_set",
    "save_vocabulary",
    "total_order",
    "vocabulary_from_counts",
]

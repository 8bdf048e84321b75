"""Defines vocabularies: the tokens that rows belong to, with their counts and a digest. Does not import TensorFlow."""

from embedding_core.vocabulary.vocabulary import (
    Evolution,
    FeatureSummary,
    Vocabulary,
    admitted_rows,
    evolved_vocabulary,
    length_percentiles,
    no_token_left,
    representable,
    total_order,
    vocabulary_from_counts,
)
from embedding_core.vocabulary.vocabulary_files import (
    Block,
    load_vocabularies,
    load_vocabulary,
    merge_sorted,
    partition_of,
    save_in_blocks,
    save_set,
    save_vocabulary,
)

__all__ = [
    "Block",
    "Evolution",
    "FeatureSummary",
    "Vocabulary",
    "admitted_rows",
    "evolved_vocabulary",
    "length_percentiles",
    "load_vocabularies",
    "load_vocabulary",
    "merge_sorted",
    "no_token_left",
    "partition_of",
    "representable",
    "save_in_blocks",
    "save_set",
    "save_vocabulary",
    "total_order",
    "vocabulary_from_counts",
]

"""Collects the candidates of a retrieval model, with their vectors and their counts in positive training rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import DataError
from embedding_core.evaluation.queries import ReadRows
from embedding_core.evaluation.ranking_metrics import Lists
from embedding_core.evaluation.towers import Towers, Vectors, all_vectors
from embedding_core.training.row_stream import batches_once

Ids: TypeAlias = npt.NDArray[np.int64]

_BATCH = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalog:
    """The candidates; every array is indexed by the id of the feature that identifies a candidate.

    Attributes:
      vectors: float32 `[tokens, d]`, one array per model.
      counts: int64 `[tokens]`, number of positive rows of the train split with each candidate; zeros if they were not
        counted.
      known: bool `[tokens]`, whether each id is a candidate: all tokens of the vocabulary, if each candidate tower
        reads only that feature; otherwise only the tokens in the rows of the train split.
    """

    vectors: tuple[Vectors, ...]
    counts: Ids
    known: npt.NDArray[np.bool_]


def candidate_count(config: EmbeddingConfig, feature: str) -> int:
    """Return the number of tokens of a feature; their ids are 0, 1, ..."""
    table = config.table_of(feature)
    return table.vocabulary_size - table.oov_rows


def candidates_of(
    models: Sequence[Towers], tokens: int, read: ReadRows, files: Sequence[str], *, counted: bool
) -> Catalog:
    """Compute the vectors of the candidates; read the train split once, if needed.

    Args:
      models: the models; if each candidate tower reads only the identifying feature, every token is a candidate.
      tokens: number of tokens of the feature that identifies a candidate.
      read: reads label and candidate of a row.
      files: TFRecord files of the train split.
      counted: whether the candidates in positive rows of the train split are counted.

    Raises:
      DataError: a row has several candidates.
    """
    alone = all(model.alone for model in models)
    counts, known = np.zeros(tokens, np.int64), np.full(tokens, alone)
    vectors = [all_vectors(model, tokens) for model in models] if alone else []
    for _, serialized in batches_once(list(files), _BATCH) if counted or not alone else ():
        labelled = read(serialized)
        ids = labelled.candidates
        counts += np.bincount(ids[labelled.positive & (ids >= 0)], minlength=tokens)
        if alone:
            continue
        new, rows = _first_seen(ids, known)
        made = [model.candidates(tf.gather(serialized, rows)) for model in models]
        vectors = vectors or [np.zeros((tokens, one.shape[1]), np.float32) for one in made]
        for whole, part in zip(vectors, made, strict=True):
            whole[new] = part
        known[new] = True
    empty = [np.zeros((tokens, 0), np.float32)] * len(models)
    return Catalog(vectors=tuple(vectors or empty), counts=counts, known=known)


def single_ids(ids: tf.RaggedTensor, tokens: int) -> Ids:
    """Return the only id of each row, int64 `[B]`; -1 if the row has no id or an unknown token.

    Raises:
      DataError: a row has several ids.
    """
    lengths = ids.row_lengths().numpy()
    if (lengths > 1).any():
        raise DataError("a row has several candidates: ranking metrics need one candidate per row; split such rows.")
    single = np.full(len(lengths), -1, np.int64)
    single[lengths == 1] = ids.values.numpy()
    single[(single >= tokens) | (single < 0)] = -1
    return single


def known_lists(ids: Sequence[tf.RaggedTensor], tokens: int) -> Lists:
    """Collect the distinct ids of known tokens in each row, over several features."""
    owners = [one.value_rowids().numpy() for one in ids]
    values = [one.values.numpy() for one in ids]
    every, owner = np.concatenate(values), np.concatenate(owners)
    known = (every >= 0) & (every < tokens)
    return Lists.of_pairs(owner[known], every[known], int(ids[0].nrows()))


def _first_seen(ids: Ids, known: npt.NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """Return the candidates in `ids` that are not yet known, and the first row of each."""
    distinct, rows = np.unique(ids, return_index=True)
    new = (distinct >= 0) & ~known[np.maximum(distinct, 0)]
    return distinct[new], rows[new]

"""Collects the candidates of a two-tower model, with their vectors and their counts in positive training rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import DataError
from embedding_core.model_inputs import sequence_lengths
from embedding_core.serving.serving_module import config_of_features
from embedding_core.tasks import retrieval_index
from embedding_core.training.finished_run import RestoredRun
from embedding_core.training.row_stream import batches_once
from embedding_core.training.training_inputs import Batch, Inputs, RowParser

Ids: TypeAlias = npt.NDArray[np.int64]
Vectors: TypeAlias = npt.NDArray[np.float32]
ModelInputs: TypeAlias = Mapping[str, Any]
"""The parts `ids` and `dense` of a batch."""

_BATCH = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalog:
    """The candidates; every array is indexed by the id of the feature that identifies a candidate.

    Attributes:
      vectors: float32 `[tokens, d]`.
      counts: int64 `[tokens]`, number of positive rows of the train split with each candidate.
      known: bool `[tokens]`, whether each id is a candidate. If the candidate tower reads only that feature, every
        token of the vocabulary is one; otherwise only the tokens in the rows of the train split are.
    """

    vectors: Vectors
    counts: Ids
    known: npt.NDArray[np.bool_]

    def ids_of(self, ids: tf.RaggedTensor) -> Ids:
        """Return the candidate id of each row, int64 `[B]`; -1 if the row has no candidate, or an unknown token."""
        return _single(ids, len(self.counts))


def candidate_feature(run: RestoredRun) -> str:
    """Return the feature that identifies a candidate.

    Raises:
      DataError: the candidate tower does not read exactly one categorical feature, and neither `training.softmax` nor
        `training.negatives` names one of its features.
    """
    towers = [one for one in run.model.candidate_features if one in _names(run.description.config)]
    training = run.description.training
    source = training.softmax or training.negatives
    drawn = None if source is None else source.feature
    if len(towers) == 1:
        return str(towers[0])
    if drawn in towers:
        return str(drawn)
    raise DataError(
        f"the candidate tower reads {', '.join(towers) or 'no categorical feature'}: name the one that identifies a "
        "candidate as `training.softmax.feature` or `training.negatives.feature`."
    )


def candidates_of(run: RestoredRun, inputs: Inputs, feature: str, files: Sequence[str]) -> Catalog:
    """Read the train split once; count the candidates and compute their vectors.

    Args:
      run: the trained model.
      inputs: sources of the model's inputs.
      feature: feature that identifies a candidate.
      files: TFRecord files of the train split.

    Raises:
      DataError: a row has several candidates.
    """
    table = inputs.config.table_of(feature)
    tokens = table.vocabulary_size - table.oov_rows
    names = tuple(run.model.candidate_features)
    alone = names == (feature,)
    read = _only(inputs, [name for name in names if name in _names(inputs.config)], dense=not alone)
    counts, known = np.zeros(tokens, np.int64), np.full(tokens, alone)
    vectors = _vectors_alone(run, feature, tokens) if alone else None
    parse = RowParser(read).traced()
    for _, serialized in batches_once(list(files), _BATCH):
        batch = parse(serialized)
        ids = _single(batch["ids"][feature], tokens)
        positive = (batch["label"].numpy()[:, retrieval_index(inputs.tasks)] == 1) & (ids >= 0)
        counts += np.bincount(ids[positive], minlength=tokens)
        if alone:
            continue
        new, rows = _first_seen(ids, known)
        made = _vectors(run, names, _rows(batch, rows))
        vectors = np.zeros((tokens, made.shape[1]), np.float32) if vectors is None else vectors
        vectors[new], known[new] = made, True
    return Catalog(
        vectors=np.zeros((tokens, 0), np.float32) if vectors is None else vectors, counts=counts, known=known
    )


def _names(config: EmbeddingConfig) -> list[str]:
    return [feature.name for feature in config.features]


def _only(inputs: Inputs, features: Sequence[str], *, dense: bool) -> Inputs:
    """Restrict the inputs to some features, so that the others are not read."""
    config = config_of_features(inputs.config, features)
    return dataclasses.replace(inputs, config=config, dense=inputs.dense if dense else ())


def _single(ids: tf.RaggedTensor, tokens: int) -> Ids:
    """Return the only id of each row; -1 if the row has no id, or that of an unknown token."""
    lengths = ids.row_lengths().numpy()
    if (lengths > 1).any():
        raise DataError("a row has several candidates: Recall@k needs one candidate per row; split such rows.")
    single = np.full(len(lengths), -1, np.int64)
    single[lengths == 1] = ids.values.numpy()
    single[(single >= tokens) | (single < 0)] = -1
    return single


def _first_seen(ids: Ids, known: npt.NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """Return the candidates in `ids` that are not yet known, and the first row of each."""
    distinct, rows = np.unique(ids, return_index=True)
    new = (distinct >= 0) & ~known[np.maximum(distinct, 0)]
    return distinct[new], rows[new]


def _rows(batch: Batch, rows: Ids) -> ModelInputs:
    parts = {"ids": batch["ids"], "dense": batch["dense"]}
    taken: ModelInputs = tf.nest.map_structure(lambda value: tf.gather(value, rows), parts)
    return taken


def _vectors(run: RestoredRun, names: Sequence[str], batch: ModelInputs) -> Vectors:
    config = config_of_features(run.description.config, [name for name in names if name in batch["ids"]])
    given = {**batch["dense"], **sequence_lengths(config, batch["ids"]), **run.engine.lookup(batch["ids"])}
    vectors: Vectors = run.model.candidate_vectors(given).numpy()
    return vectors


def _vectors_alone(run: RestoredRun, feature: str, tokens: int) -> Vectors:
    """Compute the vectors of all tokens, for a candidate tower that reads only this feature."""
    parts = []
    for start in range(0, max(tokens, 1), _BATCH):
        ids = tf.range(start, min(start + _BATCH, tokens), dtype=tf.int64)
        rows = {"ids": {feature: tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids))}, "dense": {}}
        parts.append(_vectors(run, (feature,), rows))
    return np.concatenate(parts)

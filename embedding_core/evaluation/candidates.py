"""Finds all candidates of a two-tower model: their vectors, and how often each is in the positive rows of a split."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import DataError
from embedding_core.training.finished_run import RestoredRun
from embedding_core.training.row_stream import batches_once
from embedding_core.training.training_inputs import Batch, Inputs, RowParser

_BATCH = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalog:
    """The candidates, by id of the feature that identifies them.

    Attributes:
      vectors: float32 `[tokens, d]`.
      counts: int64 `[tokens]`, positive rows of the train split with that candidate.
      known: bool `[tokens]`: which ids are candidates. All tokens of the vocabulary if the candidate tower reads
        that feature alone; else those that the train split has a row of.
    """

    vectors: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]
    known: npt.NDArray[np.bool_]

    def ids_of(self, ids: tf.RaggedTensor) -> npt.NDArray[np.int64]:
        """The candidate of each row, int64 `[B]`; -1 if the row has none, or one that is unknown."""
        return _single(ids, len(self.counts))


def candidate_feature(run: RestoredRun) -> str:
    """The feature that identifies a candidate.

    Raises:
      DataError: none of the candidate tower's features does.
    """
    towers = [one for one in run.model.candidate_features if one in _names(run.description.config)]
    negatives = run.description.training.negatives
    drawn = None if negatives is None else negatives.feature
    if len(towers) == 1:
        return str(towers[0])
    if drawn in towers:
        return str(drawn)
    raise DataError(
        f"the candidate tower reads {', '.join(towers) or 'no categorical feature'}: name the one that identifies a "
        "candidate as `training.negatives.feature`."
    )


def candidates_of(run: RestoredRun, inputs: Inputs, feature: str, files: Sequence[str]) -> Catalog:
    """Read the split once, and compute the vectors of all candidates.

    Args:
      run: the trained model.
      inputs: how rows are read.
      feature: that identifies a candidate.
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
    parser = RowParser(read)
    for _, serialized in batches_once(list(files), _BATCH):
        batch = parser(serialized)
        ids = _single(batch["ids"][feature], tokens)
        positive = (batch["label"].numpy()[:, 0] == 1) & (ids >= 0)
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
    """The inputs of some of the features: what is not needed is not read."""
    kept = tuple(inputs.config.feature(name) for name in features)
    used = {feature.table for feature in kept}
    tables = tuple(table for table in inputs.config.tables if table.name in used)
    config = EmbeddingConfig(tables=tables, features=kept)
    return dataclasses.replace(inputs, config=config, dense=inputs.dense if dense else ())


def _single(ids: tf.RaggedTensor, tokens: int) -> npt.NDArray[np.int64]:
    """The one id of each row, -1 for none or an unknown one."""
    lengths = ids.row_lengths().numpy()
    if (lengths > 1).any():
        raise DataError("a row has several candidates: Recall@k needs rows of one candidate each.")
    found = np.full(len(lengths), -1, np.int64)
    found[lengths == 1] = ids.values.numpy()
    found[(found >= tokens) | (found < 0)] = -1
    return found


def _first_seen(ids: npt.NDArray[np.int64], known: npt.NDArray[np.bool_]) -> tuple[Any, Any]:
    """The candidates that were not known before, and the first row of each."""
    found, rows = np.unique(ids, return_index=True)
    new = (found >= 0) & ~known[np.maximum(found, 0)]
    return found[new], rows[new]


def _rows(batch: Batch, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    parts = {"ids": batch["ids"], "dense": batch["dense"]}
    taken: dict[str, Any] = tf.nest.map_structure(lambda value: tf.gather(value, rows), parts)
    return taken


def _vectors(run: RestoredRun, names: Sequence[str], batch: Any) -> npt.NDArray[np.float32]:
    given = {**batch["dense"], **run.engine.lookup(batch["ids"])}
    vectors: npt.NDArray[np.float32] = run.model.candidate_vectors({name: given[name] for name in names}).numpy()
    return vectors


def _vectors_alone(run: RestoredRun, feature: str, tokens: int) -> npt.NDArray[np.float32]:
    """The vectors of all tokens of a feature that the candidate tower reads alone."""
    parts = []
    for start in range(0, max(tokens, 1), _BATCH):
        ids = tf.range(start, min(start + _BATCH, tokens), dtype=tf.int64)
        rows = {"ids": {feature: tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids))}, "dense": {}}
        parts.append(_vectors(run, (feature,), rows))
    return np.concatenate(parts)

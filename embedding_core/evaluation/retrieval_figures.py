"""Measures the Recall@k of a two-tower model over all candidates, and that of a popularity ranking on the same rows.

Each positive row of the eval split is one query, and its candidate is the true one. No candidate is excluded, not even
one that another row, of either split, has for the same query. A row with an unknown candidate is a miss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import RETRIEVAL_METRICS
from embedding_core.errors import DataError
from embedding_core.evaluation.candidates import Catalog, candidate_feature, candidates_of
from embedding_core.evaluation.recall import Ranks, rank_by_counts, rank_by_product, recall_at
from embedding_core.model_inputs import is_two_tower, sequence_lengths
from embedding_core.tasks import retrieval_index
from embedding_core.training.finished_run import RestoredRun
from embedding_core.training.row_stream import batches_once
from embedding_core.training.training_inputs import Batch, Inputs, RowParser

_MOST_QUERIES = 20_000
_BATCH = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalFigures:
    """How well a model retrieves the candidates of the eval split.

    Attributes:
      metrics: "Recall@10" and "Recall@50" of the model.
      popularity: the same metrics when candidates are ranked by their counts in the positive rows of the train split.
      queries: number of measured rows.
      positive_rows: number of positive rows of the eval split; more than `queries` if a sample was drawn.
      unknown: number of measured rows whose candidate is unknown; each is a miss.
      candidates: number of candidates ranked for each query.
      feature: feature that identifies a candidate.
    """

    metrics: Mapping[str, float]
    popularity: Mapping[str, float]
    queries: int
    positive_rows: int
    unknown: int
    candidates: int
    feature: str


def measure_retrieval(
    run: RestoredRun,
    inputs: Inputs,
    *,
    train_files: Sequence[str],
    eval_files: Sequence[str],
    most_queries: int = _MOST_QUERIES,
    seed: int = 0,
) -> RetrievalFigures | str:
    """Measure Recall@k over all candidates.

    Args:
      run: the trained model.
      inputs: sources of the inputs, as in training.
      train_files: TFRecord files of the train split, for the counts of popularity.
      eval_files: TFRecord files of the eval split.
      most_queries: largest number of queries; if there are more positive rows, a sample of that size is drawn.
      seed: seed of the sample, which also depends on the order of the rows.

    Returns:
      The figures, or a sentence that says why there are none.
    """
    if not is_two_tower(run.model):
        return "the model has no query and candidate towers."
    try:
        feature = candidate_feature(run)
        catalog = candidates_of(run, inputs, feature, train_files)
        drawn = _draw_queries(run, inputs, feature, catalog, eval_files, most_queries, seed)
    except DataError as error:
        return str(error)
    if not len(drawn.truth):
        return "the eval split has no positive row."
    known = np.flatnonzero(catalog.known)
    row_of_id = np.full(len(catalog.known) + 1, -1, np.int64)  # the last entry is for truth -1
    row_of_id[known] = np.arange(len(known))
    truth = row_of_id[drawn.truth]
    by_model = rank_by_product(drawn.vectors, catalog.vectors[known], truth)
    return RetrievalFigures(
        metrics=_recalls(by_model, truth),
        popularity=_recalls(rank_by_counts(catalog.counts[known], truth), truth),
        queries=len(truth),
        positive_rows=drawn.positive_rows,
        unknown=int((truth < 0).sum()),
        candidates=len(known),
        feature=feature,
    )


def _recalls(ranks: Ranks, truth: npt.NDArray[np.int64]) -> dict[str, float]:
    return {name: recall_at(int(name.partition("@")[2]), ranks, truth) for name in RETRIEVAL_METRICS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Queries:
    vectors: npt.NDArray[np.float32]  # [n, d]
    truth: npt.NDArray[np.int64]  # [n], id of the candidate; -1 if the row has none or an unknown token
    positive_rows: int


def _draw_queries(
    run: RestoredRun, inputs: Inputs, feature: str, catalog: Catalog, files: Sequence[str], most: int, seed: int
) -> _Queries:
    """Read the positive rows of the split, or a sample of them: those with the smallest random keys."""
    parse, draws, positive_rows = RowParser(inputs).traced(), np.random.default_rng(seed), 0
    kept: tuple[npt.NDArray[Any], ...] = (
        np.zeros(0),
        np.zeros((0, catalog.vectors.shape[1]), np.float32),
        np.zeros(0, np.int64),
    )
    for _, serialized in batches_once(list(files), _BATCH):
        batch = parse(serialized)
        positive = np.flatnonzero(batch["label"].numpy()[:, retrieval_index(inputs.tasks)] == 1)
        vectors = _query_vectors(run, batch)[positive]
        read: tuple[npt.NDArray[Any], ...] = (
            draws.random(len(positive)),
            vectors,
            catalog.ids_of(batch["ids"][feature])[positive],
        )
        positive_rows += len(positive)
        kept = tuple(np.concatenate([old, new]) for old, new in zip(kept, read, strict=True))
        if len(kept[0]) > most:
            smallest = np.sort(np.argpartition(kept[0], most - 1)[:most])
            kept = tuple(part[smallest] for part in kept)
    return _Queries(vectors=kept[1], truth=kept[2], positive_rows=positive_rows)


def _query_vectors(run: RestoredRun, batch: Batch) -> npt.NDArray[np.float32]:
    names = run.model.query_features
    ids = {name: batch["ids"][name] for name in names if name in batch["ids"]}
    lengths = sequence_lengths(run.description.config, ids)
    given: dict[str, tf.Tensor] = {**batch["dense"], **lengths, **run.engine.lookup(ids)}
    vectors: npt.NDArray[np.float32] = run.model.query_vectors(given).numpy()
    return vectors

"""Scores candidates for the queries of an eval split, and computes the figures of a retrieval model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import DataError
from embedding_core.evaluation.queries import (
    Labelled,
    Queries,
    ReadRows,
    choose_queries,
    rows_of_queries,
    seen_in_training,
    user_reader,
)
from embedding_core.evaluation.ranking_metrics import (
    Ints,
    Lists,
    Numbers,
    Ranks,
    metric_values,
    no_lists,
    rank_by_counts,
    rank_by_product,
)
from embedding_core.evaluation.towers import RunTowers, Towers, Vectors, all_vectors, only_features
from embedding_core.quality_rules import GATE_METRICS, RankingMetric, RankingProtocol, ranking_metric
from embedding_core.tasks import POSITIVE, retrieval_index
from embedding_core.training.drawn_candidates import add_counts
from embedding_core.training.finished_run import RestoredRun
from embedding_core.training.row_stream import batches_once
from embedding_core.training.training_inputs import Inputs, RowParser

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
        add_counts(counts, ids[labelled.positive & (ids >= 0)])
        if alone:
            continue
        new, rows = _first_seen(ids, known)
        made = [model.candidates(tf.gather(serialized, rows)) for model in models]
        vectors = vectors or [np.zeros((tokens, part.shape[1]), np.float32) for part in made]
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
    owners = [id_.value_rowids().numpy() for id_ in ids]
    values = [id_.values.numpy() for id_ in ids]
    every, owner = np.concatenate(values), np.concatenate(owners)
    known = (every >= 0) & (every < tokens)
    return Lists.of_pairs(owner[known], every[known], int(ids[0].nrows()))


def _first_seen(ids: Ids, known: npt.NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """Return the candidates in `ids` that are not yet known, and the first row of each."""
    distinct, rows = np.unique(ids, return_index=True)
    new = (distinct >= 0) & ~known[np.maximum(distinct, 0)]
    return distinct[new], rows[new]


# Ranks the true candidates of an evaluation's queries, with one or several models on the same queries.
#
# QualityGate ranks with the restored run, and Evaluator with exported models.

ReadLabels = Callable[[tf.Tensor], npt.NDArray[np.bool_]]
"""Serialized tf.Examples, string `[B]` -> whether each is positive, bool `[B]`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankedQueries:
    """The queries of an evaluation, and the ranks of their true candidates.

    Attributes:
      queries: the queries.
      truths: the ranked true candidates of each query, as indices of candidates.
      ranks: the ranks of `truths` by each model.
      excluded: the candidates that are left out of each query's ranking, as indices of candidates.
      counts: int64 `[m]`, number of positive rows of the train split with each candidate; zeros if not counted.
      seen_truths: number of true candidates that are left out because they were seen; each is a miss.
      nothing_left_out: the same queries, ranked among all candidates; None if no true candidate is left out.
    """

    queries: Queries
    truths: Lists
    ranks: tuple[Ranks, ...]
    excluded: Lists
    counts: Ints
    seen_truths: int = 0
    nothing_left_out: RankedQueries | None = None

    def by_popularity(self) -> Ranks:
        """Rank the true candidates by `counts`."""
        return rank_by_counts(self.counts, self.truths, self.excluded)

    def values(self, metrics: Iterable[RankingMetric], ranks: Ranks) -> dict[str, Numbers]:
        """Compute the value of each metric for each query, float64 `[q]`, by name."""
        return metric_values(metrics, ranks, self.truths, self.queries.relevant)

    def means(self, metrics: Iterable[RankingMetric], ranks: Ranks) -> dict[str, float]:
        """Compute the mean of each metric over the queries, by name."""
        return {name: float(values.mean()) for name, values in self.values(metrics, ranks).items()}


def label_reader(inputs: Inputs) -> ReadLabels:
    """Make a function that reads labels as training does; a row is positive if the label of the retrieval task is 1."""
    at, first = retrieval_index(inputs.tasks), inputs.config.features[:1]
    parse = RowParser(only_features(inputs, [feature.name for feature in first], dense=False)).traced()
    return lambda serialized: parse(serialized)["label"].numpy()[:, at] == 1


def seen_features(config: EmbeddingConfig, towers: Towers) -> tuple[str, ...]:
    """Return the features of the query tower that have the candidates' vocabulary, such as a history."""
    own = config.table_of(towers.feature)

    def is_same(name: str) -> bool:
        table = config.table_of(name)
        return table.name == own.name if own.vocabulary is None else table.vocabulary == own.vocabulary

    return tuple(name for name in towers.query_features if name != towers.feature and is_same(name))


def rank_queries(
    models: Sequence[Towers],
    inputs: Inputs,
    positive: ReadLabels,
    protocol: RankingProtocol,
    *,
    train_files: Sequence[str],
    eval_files: Sequence[str],
    seed: int,
    counted: bool,
    on_rows: Callable[[tf.Tensor], None] = lambda serialized: None,
) -> RankedQueries:
    """Rank the true candidates of all queries among all candidates.

    Args:
      models: the models; the first one decides which feature identifies a candidate.
      inputs: tables, features and vocabularies to read the ids of candidates and histories with.
      positive: tells which rows are positive.
      protocol: what a query is, and what is excluded.
      train_files: TFRecord files of the train split. They hold what users have seen, the counts, and the candidates'
        other features.
      eval_files: TFRecord files of the eval split.
      seed: seed of the sample of queries.
      counted: whether to count the candidates in the train split.
      on_rows: called with the serialized row of each query, in batches.

    Raises:
      DataError: the eval split has no positive row, a row has several candidates or no user, or another feature
        identifies the candidates of another model.
    """
    towers = models[0]
    other = next((model.feature for model in models if model.feature != towers.feature), None)
    if other is not None:
        raise DataError(
            f"the candidates of the models differ: {towers.feature!r} identifies those of the first, {other!r} those "
            "of another. Only models of the same candidates can be compared: remove the baseline."
        )
    tokens = candidate_count(inputs.config, towers.feature)
    read = _row_reader(inputs, towers.feature, tokens, positive)
    users = None if protocol.user is None else user_reader(protocol.user, eval_files)
    history = _history_reader(inputs, seen_features(inputs.config, towers), tokens)
    shown = None if users is None else history
    queries = choose_queries(eval_files, read, users, most=protocol.queries, seed=seed, history=shown)
    seen = []
    if protocol.exclude_seen and users is not None:
        seen.append(seen_in_training(train_files, read, users, queries))
    before = history if protocol.exclude_seen else None
    catalog = candidates_of(models, tokens, read, train_files, counted=counted)
    vectors: list[list[Vectors]] = [[] for _ in models]
    histories = []
    for serialized in rows_of_queries(eval_files, queries):
        for parts, model in zip(vectors, models, strict=True):
            parts.append(model.queries(serialized))
        if before is not None:
            histories.append(before(serialized))
        on_rows(serialized)
    known = np.flatnonzero(catalog.known)
    places = np.full(tokens, -1, np.int64)
    places[known] = np.arange(len(known))
    pairs = [(np.concatenate(parts), whole[known]) for parts, whole in zip(vectors, catalog.vectors, strict=True)]

    def ranked(truths: Lists, excluded: Lists) -> RankedQueries:
        ranks = tuple(rank_by_product(*pair, truths, excluded) for pair in pairs)
        return RankedQueries(
            queries=queries, truths=truths, ranks=ranks, excluded=excluded, counts=catalog.counts[known]
        )

    truths = queries.truths.renumbered(places)
    if histories:
        seen.append(_joined(histories))
    excluded = _united(seen, len(queries.rows)).renumbered(places)
    # A true candidate is left out like any other: a mask that spared it would know the answer.
    found = ranked(truths.without(excluded), excluded)
    seen_truths = len(truths.values) - len(found.truths.values)
    if not seen_truths:
        return found
    everything = ranked(truths, no_lists(len(queries.rows)))
    return dataclasses.replace(found, seen_truths=seen_truths, nothing_left_out=everything)


def _row_reader(inputs: Inputs, feature: str, tokens: int, positive: ReadLabels) -> ReadRows:
    parse = _id_parser(inputs, [feature])

    def read(serialized: tf.Tensor) -> Labelled:
        return Labelled(positive(serialized), single_ids(parse(serialized)[feature], tokens))

    return read


def _history_reader(inputs: Inputs, features: Sequence[str], tokens: int) -> Callable[[tf.Tensor], Lists] | None:
    """Make a function that reads the candidates in these features of each row; None without features."""
    if not features:
        return None
    parse = _id_parser(inputs, features)
    return lambda serialized: known_lists(list(parse(serialized).values()), tokens)


def _id_parser(inputs: Inputs, features: Sequence[str]) -> Callable[[tf.Tensor], Mapping[str, tf.RaggedTensor]]:
    """Make a function that reads the ids of some features, and neither numbers nor labels."""
    only = dataclasses.replace(only_features(inputs, features, dense=False), tasks=(POSITIVE,), weight=None)
    if not any(inputs.column_of(feature).after_transform for feature in only.config.features):
        only = dataclasses.replace(only, raw_spec={}, transform=None)
    parse = RowParser(only).traced()
    return lambda serialized: parse(serialized)["ids"]


def _joined(parts: Sequence[Lists]) -> Lists:
    """Join the lists of consecutive queries."""
    lengths = np.concatenate([np.diff(part.splits) for part in parts])
    return Lists(np.concatenate([[0], np.cumsum(lengths)]), np.concatenate([part.values for part in parts]))


def _united(lists: Sequence[Lists], count: int) -> Lists:
    """Unite several lists for each of `count` queries."""
    given = [no_lists(count), *lists]
    owners, values = (
        np.concatenate(parts) for parts in zip(*((lists.owners, lists.values) for lists in given), strict=True)
    )
    return Lists.of_pairs(owners, values, count)


_CURVE = (1, 2, 5, 10, 20, 30, 50, 75, 100)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalFigures:
    """How well a model retrieves the candidates of the eval split.

    Attributes:
      metrics: the model's metrics, such as "Recall@10".
      popularity: the same metrics when candidates are ranked by their counts in the positive rows of the train split.
      curves: pairs of K and Recall@K of "this model" and of "popularity".
      queries: number of measured users, or of rows if no column names the user.
      positive_rows: number of positive rows of the eval split.
      ranked: number of true candidates of the queries that were ranked; if it is 0, nothing was measured.
      unknown: number of true candidates of the queries that are unknown; each is a miss.
      candidates: number of all candidates, including those that a query leaves out because they were seen.
      feature: feature that identifies a candidate.
      user: column that names the user, or None.
      is_sample: whether the eval split has more queries than were measured.
      exclude_seen: whether candidates that were seen are left out.
      seen_truths: number of true candidates that were seen and are therefore left out; each is a miss.
      nothing_left_out: the model's metrics if no candidate is left out; empty if `seen_truths` is 0.
      popularity_nothing_left_out: the same of popularity.
    """

    metrics: Mapping[str, float]
    popularity: Mapping[str, float]
    queries: int
    positive_rows: int
    ranked: int
    unknown: int
    candidates: int
    feature: str
    user: str | None = None
    is_sample: bool = False
    exclude_seen: bool = False
    seen_truths: int = 0
    nothing_left_out: Mapping[str, float] = dataclasses.field(default_factory=dict)
    popularity_nothing_left_out: Mapping[str, float] = dataclasses.field(default_factory=dict)
    curves: Mapping[str, Sequence[tuple[int, float]]] = dataclasses.field(default_factory=dict)


def measure_retrieval(
    run: RestoredRun,
    inputs: Inputs,
    *,
    train_files: Sequence[str],
    eval_files: Sequence[str],
    protocol: RankingProtocol | None = None,
    metrics: Iterable[str] = GATE_METRICS,
    seed: int = 0,
) -> RetrievalFigures | str:
    """Measure ranking metrics over all candidates.

    Args:
      run: the trained model.
      inputs: sources of the inputs, as in training.
      train_files: TFRecord files of the train split, for the counts of popularity.
      eval_files: TFRecord files of the eval split.
      protocol: what a query is, and what is excluded.
      metrics: names of the metrics.
      seed: seed of the sample of queries, if the eval split has more than `protocol.queries`.

    Returns:
      The figures, or a sentence that says why there are none.
    """
    protocol = protocol or RankingProtocol()
    measured = [metric for metric in map(ranking_metric, metrics) if metric is not None]
    try:
        towers = RunTowers(run, inputs)
        ranked = rank_queries(
            [towers],
            inputs,
            label_reader(inputs),
            protocol,
            train_files=train_files,
            eval_files=eval_files,
            seed=seed,
            counted=True,
        )
    except DataError as error:
        return str(error)
    (ranks,), popularity, whole = ranked.ranks, ranked.by_popularity(), ranked.nothing_left_out
    return RetrievalFigures(
        metrics=ranked.means(measured, ranks),
        popularity=ranked.means(measured, popularity),
        curves={"this model": _curve(ranked, ranks), "popularity": _curve(ranked, popularity)},
        queries=len(ranked.queries.rows),
        positive_rows=ranked.queries.positive_rows,
        ranked=len(ranked.truths.values),
        unknown=int(ranked.queries.relevant.sum()) - len(ranked.truths.values) - ranked.seen_truths,
        candidates=len(ranked.counts),
        feature=towers.feature,
        user=protocol.user,
        is_sample=ranked.queries.is_sample,
        exclude_seen=protocol.exclude_seen,
        seen_truths=ranked.seen_truths,
        nothing_left_out={} if whole is None else whole.means(measured, whole.ranks[0]),
        popularity_nothing_left_out={} if whole is None else whole.means(measured, whole.by_popularity()),
    )


def _curve(ranked: RankedQueries, ranks: Ranks) -> list[tuple[int, float]]:
    metrics = [RankingMetric("Recall", k) for k in _CURVE]
    return list(zip(_CURVE, ranked.means(metrics, ranks).values(), strict=True))

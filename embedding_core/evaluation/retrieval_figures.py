"""Measures how a restored run ranks all candidates, and how popularity ranks them for the same queries."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from embedding_core.errors import DataError
from embedding_core.evaluation.candidates import RankedQueries, label_reader, rank_queries
from embedding_core.evaluation.ranking_metrics import Ranks
from embedding_core.evaluation.towers import RunTowers
from embedding_core.quality_rules import GATE_METRICS, RankingMetric, RankingProtocol, ranking_metric
from embedding_core.training.finished_run import RestoredRun
from embedding_core.training.training_inputs import Inputs

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

"""Ranks the queries of the eval split with exported models, and sums the queries' metrics by slice."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from components.artifact_files import read_embedding_config, read_vocabularies
from components.evaluator.model_scores import Numbers, Scorer
from components.evaluator.slices import Positions, SliceGroups
from components.evaluator.tfma_parts import Combiner, Metrics
from embedding_core.config import EmbeddingConfig
from embedding_core.evaluation.candidates import candidate_count
from embedding_core.evaluation.ranked_queries import RankedQueries, rank_queries
from embedding_core.evaluation.towers import ExportedTowers
from embedding_core.quality_rules import NOTHING_LEFT_OUT, RankingMetric, RankingSettings, ranking_metric
from embedding_core.tasks import POSITIVE
from embedding_core.training import Inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankedData:
    """What the ranking reads besides the models.

    Attributes:
      settings: how rankings are measured.
      config: tables and features of the model.
      vocabularies: folder of the model's vocabularies.
      train_files, eval_files: TFRecord files of the splits.
    """

    settings: RankingSettings
    config: EmbeddingConfig
    vocabularies: str
    train_files: Sequence[str]
    eval_files: Sequence[str]

    @classmethod
    def of_folders(cls, settings: RankingSettings, table_configs: str, vocabularies: str, **files: Any) -> RankedData:
        """Read the tables and features of a TableConfigs artifact."""
        return cls(settings=settings, config=read_embedding_config(table_configs), vocabularies=vocabularies, **files)

    def inputs(self) -> Inputs:
        """Return the inputs that read the ids of candidates and histories."""
        names = {table.vocabulary for table in self.config.tables if table.vocabulary is not None}
        files = {name: os.path.join(self.vocabularies, f"{name}.txt") for name in names}
        return Inputs(config=self.config, vocabularies=files, tasks=(POSITIVE,))

    def tokens(self, feature: str) -> list[bytes]:
        """Return the tokens of a feature in the order of their ids."""
        table = self.config.table_of(feature)
        if table.vocabulary is None:
            return [str(number).encode() for number in range(candidate_count(self.config, feature))]
        found: list[bytes] = read_vocabularies(self.vocabularies)[table.vocabulary].tokens.to_pylist()
        return found[: candidate_count(self.config, feature)]


class RankingSums:
    """The sums of one ranking metric over the queries of each slice.

    If true candidates are left out because they were seen, there is a second sum, with nothing left out.
    """

    def __init__(self) -> None:
        """Start without queries."""
        self._sums: dict[str, Numbers] = {"": np.zeros(0)}  # by what follows the name of the metric
        self._counts: Numbers = np.zeros(0)

    def add(self, scores: Any, rows: Positions, slices: Positions) -> None:
        """Do nothing: `set` gives the queries, when all rows are read."""

    def set(self, values: Numbers, queries: Positions, slices: Positions, suffix: str = "") -> None:
        """Sum the values by slice; the query `queries[i]` belongs to the slice `slices[i]`.

        Args:
          values: the value of each query.
          queries: query of each pair of a query and a slice.
          slices: slice of each pair.
          suffix: what follows the name of the metric in results.
        """
        self._sums[suffix] = np.bincount(slices, values[queries]).astype(np.float64)
        self._counts = np.bincount(slices).astype(np.float64)

    def of_slice(self, combiner: Combiner, number: int) -> Metrics:
        """Return the means over the queries of a slice, by TFMA's key; NaN without queries."""
        count = self._counts[number] if number < len(self._counts) else 0
        return {
            combiner.key._replace(name=combiner.key.name + suffix): float(sums[number] / count) if count else math.nan
            for suffix, sums in self._sums.items()
        }


class ExportedRanking:
    """The rankings of several exported models on the same queries."""

    def __init__(
        self, scorers: Mapping[str, Scorer], names: Sequence[str], data: RankedData, groups: SliceGroups
    ) -> None:
        """Rank all queries of the eval split.

        Args:
          scorers: the models by name.
          names: names of the models; the first model determines the candidate feature.
          data: what the ranking reads besides the models.
          groups: the slices; a query belongs to the slices of its row.

        Raises:
          DataError: a model cannot retrieve, or the data cannot be ranked.
        """
        settings = data.settings
        named = (data.config, settings.columns)
        first = ExportedTowers(scorers[names[0]].model, *named, (), settings.feature)
        tokens = data.tokens(first.feature)
        towers = [ExportedTowers(scorers[name].model, *named, tokens, first.feature) for name in names]
        queries, slices, count = [], [], 0

        def on_rows(serialized: tf.Tensor) -> None:
            nonlocal count
            rows, numbers = groups.of_rows(serialized.numpy())
            queries.append(rows + count)
            slices.append(numbers)
            count += len(serialized)

        self._ranked: RankedQueries = rank_queries(
            towers,
            data.inputs(),
            scorers[names[0]].positive,
            settings,
            train_files=data.train_files,
            eval_files=data.eval_files,
            seed=settings.seed,
            counted=False,
            on_rows=on_rows,
        )
        self._names = list(names)
        self._queries, self._slices = np.concatenate(queries), np.concatenate(slices)

    def fill(self, sums: Mapping[tuple[str, str], RankingSums]) -> None:
        """Fill the sums, keyed by the names of model and metric, with the values of the queries."""
        rankings = {"": self._ranked}
        if self._ranked.nothing_left_out is not None:
            rankings[NOTHING_LEFT_OUT] = self._ranked.nothing_left_out
        for suffix, ranked in rankings.items():
            for model, ranks in zip(self._names, ranked.ranks, strict=True):
                mine = {metric: total for (name, metric), total in sums.items() if name == model}
                metrics = [metric for metric in map(ranking_metric, mine) if isinstance(metric, RankingMetric)]
                for name, values in ranked.values(metrics, ranks).items():
                    # Without a ranked candidate the metrics of all models are 0, and would reach each other.
                    measured = values if len(ranked.truths.values) else np.full_like(values, math.nan)
                    mine[name].set(measured, self._queries, self._slices, suffix)

"""Declares the YAML section `health`: how sick the tables of a model may look when it is pushed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from embedding_core.schema import FROM_NUMPY, Count, Number, PositiveNumber, Rule, Section

Limit = Annotated[float, Field(ge=0, le=1), FROM_NUMPY, Rule("a number from 0 to 1")]


class Health(Section):
    """Bounds of the health figures of each table; null measures a figure without a bound.

    "The base" is the checkpoint that the run starts from, such as that of the last push. The figures from
    `max_frozen` on compare with it, by token; a run that starts cold does not have them. See docs/health.md.

    Attributes:
      action: what to do if a figure exceeds its bound: "refuse" pushes nothing, "warn" only reports it.
      max_nonfinite: share of rows with a NaN or an infinity in the row or its slots.
      max_zero: share of rows that are all zeros.
      max_duplicated: share of rows that are equal to another row.
      max_untrained: share of the occurrences of tokens whose rows no gradient ever reached.
      max_constant_columns: number of columns with the same value in all rows.
      max_norm_spread: greatest norm of a row, over the median.
      max_common_direction: squared norm of the mean row, over the mean squared norm; 1 if all rows are equal.
      min_effective_rank: number of directions in which the rows differ.
      max_unknown_traffic: share of the occurrences of tokens without a row.
      max_hubness: skewness of how often a row is among the 10 nearest of another row.
      max_frozen: share of the occurrences of tokens in this run's data whose rows did not change.
      max_frozen_rows: share of the tokens in this run's data whose rows did not change, each counted once.
      max_strayed: share of the rows that this run did not train and that moved by over 1% of their norm.
      max_reset: share of the trained rows of the base whose slots have their initial values again.
      max_older: share of rows with an accumulator below that of the base, where accumulators only grow.
      max_misplaced: share of rows that are much closer to another token's row of the base than to their own.
      max_flipped: share of rows that point away from their row of the base (cosine below -0.5).
      max_grown: share of rows whose norm is over 4 times that of the base.
      max_shrunk: share of rows whose norm is below a quarter of that of the base.
      max_norm_growth: greatest norm of a row, over that of the base.
      min_spread_change: distance of rows to their mean, over that of the base.
      min_rank_change: effective rank, over that of the base.
      max_churn: mean share of a row's 10 nearest neighbours that changed.
      max_seen_move: median distance between a row and its row of the base, over its norm, of tokens in this run's data.
      max_unseen_move: the same of the other tokens, which move only if training draws them.
      max_new_traffic: share of the occurrences of tokens that the base does not have, if there are at least 1,000.
      max_expired_traffic: share of the occurrences, in the data of the base, of tokens that lost their rows.
    """

    SHORT = "action"

    action: Literal["refuse", "warn"] = "refuse"
    max_nonfinite: Limit | None = 0.0
    max_zero: Limit | None = 0.01
    max_duplicated: Limit | None = 0.01
    max_untrained: Limit | None = 0.5
    max_constant_columns: Count | None = 0
    max_norm_spread: PositiveNumber | None = 100.0
    max_common_direction: Limit | None = 0.95
    min_effective_rank: PositiveNumber | None = None
    max_unknown_traffic: Limit | None = None
    max_hubness: Number | None = None
    max_frozen: Limit | None = 0.1
    max_frozen_rows: Limit | None = 0.25
    max_strayed: Limit | None = 0.01
    max_reset: Limit | None = 0.01
    max_older: Limit | None = 0.01
    max_misplaced: Limit | None = 0.5
    max_flipped: Limit | None = 0.1
    max_grown: Limit | None = 0.2
    max_shrunk: Limit | None = 0.2
    max_norm_growth: PositiveNumber | None = 10.0
    min_spread_change: PositiveNumber | None = 0.25
    min_rank_change: PositiveNumber | None = 0.25
    max_churn: Limit | None = 0.9
    max_seen_move: PositiveNumber | None = None
    max_unseen_move: PositiveNumber | None = 0.25
    max_new_traffic: Limit | None = 0.95
    max_expired_traffic: Limit | None = 0.95

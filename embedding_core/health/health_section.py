"""Declares the YAML section `health`: how sick the tables of a model may look when it is pushed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from embedding_core.schema import FROM_NUMPY, Count, PositiveNumber, Rule, Section

Limit = Annotated[float, Field(ge=0, le=1), FROM_NUMPY, Rule("a number from 0 to 1")]


class Health(Section):
    """Bounds of the health figures of each table; null measures a figure without a bound.

    "The base" is the checkpoint that the run starts from, such as that of the last push. The figures from
    `max_frozen` on compare with it, by token; a run that starts cold does not have them. See docs/health.md.

    Attributes:
      action: what to do if a figure exceeds its bound: "refuse" pushes nothing, "warn" only reports it.
      max_zero: share of rows that are all zeros.
      max_duplicated: share of rows that are equal to another row.
      max_constant_columns: number of columns with the same value in all rows.
      max_norm_spread: greatest norm of a row, over the median.
      max_common_direction: squared norm of the mean row, over the mean squared norm; 1 if all rows are equal.
      max_frozen: share of the occurrences of tokens in this run's data whose rows did not change.
      max_frozen_rows: share of the tokens in this run's data whose rows did not change, each counted once.
      max_strayed: share of the rows that this run did not train and that moved by over 1% of their norm.
      max_unseen_move: median distance between a row and its row of the base, over its norm, of tokens that this run's
        data do not have: they move only if training draws them.
    """

    SHORT = "action"

    action: Literal["refuse", "warn"] = "refuse"
    max_zero: Limit | None = 0.01
    max_duplicated: Limit | None = 0.01
    max_constant_columns: Count | None = 0
    max_norm_spread: PositiveNumber | None = 100.0
    max_common_direction: Limit | None = 0.95
    max_frozen: Limit | None = 0.1
    max_frozen_rows: Limit | None = 0.25
    max_strayed: Limit | None = 0.01
    max_unseen_move: PositiveNumber | None = 0.25

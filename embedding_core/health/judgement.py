"""Declares the YAML section `health`, and applies its bounds to the figures of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from embedding_core.health.table_figures import TableFigures
from embedding_core.schema import FROM_NUMPY, Count, Json, PositiveNumber, Rule, Section

# Declares the YAML section `health`: how sick the tables of a model may look when it is pushed.

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


# Applies the bounds of the section `health` to the figures of a table.

_LEAST_ROWS = 3
_TRAINING = "check the learning rate, the data of this run and what it starts from"
_RESTORE = "check that the tables were restored whole and for these vocabularies, and train again from the last push"


class _Words(NamedTuple):
    """What a figure says, in the words of its refusal.

    Attributes:
      what: the figure, in words that follow "of table 'x'".
      remedy: what to check.
      few: whether fewer than 3 rows never exceed the bound: one of four rows may well not change.
    """

    what: str
    remedy: str
    few: bool = False


FIGURES = {
    "zero": _Words("share of rows that are all zeros", _RESTORE),
    "duplicated": _Words("share of rows that are equal to another row", _RESTORE),
    "constant_columns": _Words("number of columns with the same value in all rows", _RESTORE),
    "norm_spread": _Words("greatest norm of a row over the median", _TRAINING),
    "common_direction": _Words("share of the squared norms that all rows have in common", _TRAINING),
    "frozen": _Words(
        "share of the token occurrences in this run whose rows did not change since the base",
        "check that training updates the table and that its rows were saved after it",
    ),
    "frozen_rows": _Words(
        "share of the tokens in this run whose rows did not change since the base",
        "check that training updates the table and that its rows were saved after it",
        few=True,
    ),
    "strayed": _Words("share of the rows without training in this run that moved since the base", _RESTORE),
    "move_unseen": _Words("median move of the rows of other tokens since the base, over their norm", _RESTORE),
}
"""The figures that may have a bound, in the order of a report."""

_KEYS = {"move_unseen": "unseen_move"}
_MOST_TOKENS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A figure of a table beyond its bound.

    Attributes:
      table, figure: their names.
      value: measured value.
      key: the setting with the bound, below `health`.
      bound: the bound.
      tokens: up to 10 tokens that it concerns, as people may see them.
      reason: sentence that says all this, and what to do.
    """

    table: str
    figure: str
    value: float
    key: str
    bound: float
    tokens: tuple[str, ...]
    reason: str

    def to_dict(self) -> Json:
        """Return the finding as JSON values."""
        return {**dataclasses.asdict(self), "tokens": list(self.tokens)}


def bound_of(health: Health, figure: str) -> tuple[str, float | None]:
    """Return the setting that bounds a figure, such as "max_zero", and its value; ("", None) if no setting does."""
    key = f"max_{_KEYS.get(figure, figure)}"
    return (key, getattr(health, key)) if key in Health.model_fields else ("", None)


def judge_table(figures: TableFigures, health: Health, name_of_row: Callable[[int], str]) -> list[Finding]:
    """Compare the figures of a table with their bounds.

    Args:
      figures: figures of the table.
      health: bounds.
      name_of_row: names a row for people: by its token, or by the token's digest if the column is private.

    Returns:
      A finding for each figure beyond its bound.
    """
    return list(_findings(figures, health, name_of_row))


def _findings(figures: TableFigures, health: Health, name_of_row: Callable[[int], str]) -> Iterator[Finding]:
    for figure, words in FIGURES.items():
        key, bound = bound_of(health, figure)
        value = figures.values.get(figure)
        if bound is None or value is None or value <= bound:
            continue
        rows = figures.examples.get(figure, [])
        if words.few and len(rows) < min(_LEAST_ROWS, figures.rows):
            continue
        tokens = tuple(map(name_of_row, rows))
        others = " and others" if len(tokens) >= _MOST_TOKENS else ""
        concerned = f" The rows of {', '.join(map(repr, tokens))}{others}." if tokens else ""
        reason = (
            f"the {words.what} of table {figures.table!r} is {value:.4g}: it must be at most {bound:g} "
            f"(`health.{key}`).{concerned} Remedy: {words.remedy}; or change the bound if this is intended."
        )
        yield Finding(
            table=figures.table, figure=figure, value=float(value), key=key, bound=bound, tokens=tokens, reason=reason
        )

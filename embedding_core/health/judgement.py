"""Applies the bounds of the section `health` to the figures of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

from embedding_core.health.health_section import Health
from embedding_core.health.table_figures import TableFigures
from embedding_core.schema import Json

_LEAST_ROWS = 3
_LEAST_TRAFFIC = 1000
_TRAINING = "check the learning rate, the data of this run and what it starts from"
_RESTORE = "check that the tables were restored whole and for these vocabularies, and train again from the last push"
_DATA = "check the data of this run against that of the last push"


class _Words(NamedTuple):
    """What a figure says, in the words of its refusal.

    Attributes:
      what: the figure, in words that follow "of table 'x'".
      remedy: what to check.
      few: whether fewer than 3 rows never exceed the bound: one of ten rows may well turn or grow.
      of_traffic: whether fewer than 1,000 token occurrences never exceed the bound: all customers of a few minutes may
        well be new.
    """

    what: str
    remedy: str
    few: bool = False
    of_traffic: bool = False


FIGURES = {
    "nonfinite": _Words("share of rows with a NaN or an infinity in the row or its slots", _TRAINING),
    "zero": _Words("share of rows that are all zeros", _RESTORE),
    "duplicated": _Words("share of rows that are equal to another row", _RESTORE),
    "untrained": _Words(
        "share of the token occurrences whose rows no gradient ever reached", "check that the model uses the table"
    ),
    "constant_columns": _Words("number of columns with the same value in all rows", _RESTORE),
    "norm_spread": _Words("greatest norm of a row over the median", _TRAINING),
    "common_direction": _Words("share of the squared norms that all rows have in common", _TRAINING),
    "effective_rank": _Words("effective rank", _TRAINING),
    "unknown_traffic": _Words("share of the token occurrences without a row", _DATA),
    "hubness": _Words("skewness of how often a row is a nearest neighbour", _TRAINING),
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
    "reset": _Words("share of the base's trained rows whose slots have their initial values again", _RESTORE),
    "older": _Words("share of rows with an accumulator below the base's", _RESTORE),
    "misplaced": _Words("share of rows that lie at another token's row of the base", _RESTORE),
    "flipped": _Words("share of rows that point away from their row of the base", _TRAINING, few=True),
    "grown": _Words("share of rows with over 4 times the norm of the base", _TRAINING, few=True),
    "shrunk": _Words("share of rows with below a quarter of the norm of the base", _TRAINING, few=True),
    "norm_growth": _Words("greatest norm of a row over the base's", _TRAINING),
    "spread_change": _Words("distance of rows to their mean over the base's", _TRAINING),
    "rank_change": _Words("effective rank over the base's", _TRAINING),
    "churn": _Words("share of the nearest neighbours that changed since the base", _RESTORE),
    "move_seen": _Words("median move of the rows of this run's tokens since the base, over their norm", _TRAINING),
    "move_unseen": _Words("median move of the rows of other tokens since the base, over their norm", _RESTORE),
    "new_traffic": _Words("share of the token occurrences that the base has no row for", _DATA, of_traffic=True),
    "expired_traffic": _Words("share of the base's token occurrences that lost their rows", _DATA),
}
"""The figures that may have a bound, in the order of a report."""

_KEYS = {"move_seen": "seen_move", "move_unseen": "unseen_move"}
_OTHER_ROWS = "and others"


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
    name = _KEYS.get(figure, figure)
    for key in (f"max_{name}", f"min_{name}"):
        if key in Health.model_fields:
            return key, getattr(health, key)
    return "", None


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
        if bound is None or value is None or (value <= bound if key.startswith("max_") else value >= bound):
            continue
        rows = figures.examples.get(figure, [])
        if words.few and len(rows) < min(_LEAST_ROWS, figures.rows):
            continue
        if words.of_traffic and figures.traffic is not None and figures.traffic < _LEAST_TRAFFIC:
            continue
        tokens = figures.expired if figure == "expired_traffic" else tuple(name_of_row(row) for row in rows)
        most = "at most" if key.startswith("max_") else "at least"
        concerned = f" The rows of {', '.join(map(repr, tokens))}{_others(tokens)}." if tokens else ""
        reason = (
            f"the {words.what} of table {figures.table!r} is {value:.4g}: it must be {most} {bound:g} "
            f"(`health.{key}`).{concerned} Remedy: {words.remedy}; or change the bound if this is intended."
        )
        yield Finding(
            table=figures.table, figure=figure, value=float(value), key=key, bound=bound, tokens=tokens, reason=reason
        )


def _others(tokens: tuple[str, ...]) -> str:
    return f" {_OTHER_ROWS}" if len(tokens) >= 10 else ""

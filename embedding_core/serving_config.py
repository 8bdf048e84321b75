"""Declares how a pushed version answers: the type of its rows, and the search for the best candidates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, WithJsonSchema

from embedding_core.errors import ConfigError, nearest
from embedding_core.schema import FROM_NUMPY, Mistakes, Positive, Rule, Section, Text

LARGE = 200_000
"""Number of candidates from which `when: large` searches inverted lists."""


class Approximate(Section):
    """A search that compares a query with only some of the candidates.

    Candidates are divided into lists by k-means (an inverted file; Sivic and Zisserman, 2003). A query is compared with
    the candidates of the `probes` lists with the highest expected scores.

    Attributes:
      when: "never" compares each query with all candidates, "large" searches lists if there are 200,000 candidates or
        more, "always" searches lists for any number of candidates.
      lists: number of lists; null is four times the square root of the number of candidates.
      probes: number of lists searched for a query. More lists find more of the best candidates, and take longer.
      min_recall: least share of the exact answer that the search must find on the rows of the proof; if it finds
        less, nothing is pushed.
    """

    SHORT = "when"

    when: Literal["never", "large", "always"] = "never"
    lists: Positive | None = None
    probes: Positive = 64
    min_recall: Annotated[float, Field(ge=0, le=1), FROM_NUMPY, Rule("a number from 0 to 1")] = 0.9

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if self.lists is not None and self.probes > self.lists:
            yield "probes", f"is {self.probes!r}: it must be at most `lists`, {self.lists!r}."

    def lists_of(self, candidates: int) -> int | None:
        """Return the number of lists for a number of candidates; None if the search is exact."""
        if self.when == "never" or (self.when == "large" and candidates < LARGE):
            return None
        return min(self.lists or math.ceil(4 * math.sqrt(candidates)), candidates)


class TopK(Section):
    """The answers of the signatures `top_k` and `top_k_filtered` of a retrieval model.

    Attributes:
      k: number of candidates that a query gets.
      approximate: settings of the search that compares a query with only some of the candidates.
    """

    k: Positive = 100
    approximate: Approximate = Approximate()


RowsDtype: TypeAlias = Literal["float32", "float16", "int8"]
RowsDtypes: TypeAlias = RowsDtype | Mapping[str, RowsDtype]
"""The type of all tables, or those of some tables by name; the rows of the others are float32."""

INT8_FACTS = 8
"""Bytes of the scale and the offset of an int8 row."""

ROWS_DTYPES: tuple[RowsDtype, ...] = get_args(RowsDtype)
_WORD = {"type": "string", "enum": list(ROWS_DTYPES)}
RowsDtypeSetting = Annotated[
    RowsDtype | Mapping[Text, RowsDtype],
    Rule("float32, float16 or int8, or a mapping of tables to these"),
    WithJsonSchema({"anyOf": [_WORD, {"type": "object", "additionalProperties": _WORD}]}),
]
"""`RowsDtypes` as the field of a section."""


def row_width(dim: int, dtype: RowsDtype) -> int:
    """Return how many numbers of type `dtype` store a row of `dim` values."""
    return dim + INT8_FACTS if dtype == "int8" else dim


def dtypes_of_tables(given: RowsDtypes, tables: Iterable[str]) -> dict[str, RowsDtype]:
    """Return the type of the served rows of each table.

    Args:
      given: one type, or types by table.
      tables: names of all tables.

    Raises:
      ConfigError: a type or a table is unknown.
    """
    names = list(dict.fromkeys(tables))
    default: RowsDtype = given if isinstance(given, str) else "float32"
    by_table = dict.fromkeys(names, default)
    if not isinstance(given, str):
        by_table.update(given)
    for name, dtype in by_table.items():
        if name not in names:
            raise ConfigError(f"`rows_dtype` names table {name!r}, which does not exist: {nearest(name, names)}")
        if dtype not in ROWS_DTYPES:
            raise ConfigError(f"`rows_dtype` of table {name!r} is {dtype!r}: it must be one of {list(ROWS_DTYPES)}.")
    return by_table

"""Declares the types in which the rows of tables are served: one for all tables, or one for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import WithJsonSchema

from embedding_core.errors import ConfigError, nearest
from embedding_core.schema import Rule, Text

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

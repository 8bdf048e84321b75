"""Reads the columns of the rows of a recorded request, for slices and for showing a row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError

from embedding_core.columns import MISSING, input_name
from embedding_core.config import EmbeddingConfig
from embedding_core.display import shown_token
from embedding_core.schema import Json
from embedding_core.serving import public_facts

Value: TypeAlias = "bytes | int | float"
_EXAMPLES = "examples"
_LONGEST_LIST = 20
_ABSENT = "(missing)"


@dataclasses.dataclass(frozen=True)
class Visibility:
    """What of a request and its answer may be shown; all other tokens and whole numbers are shown as digests.

    Attributes:
      columns: columns whose tokens may be shown.
      answers: whether the tokens of answers may be shown.
    """

    columns: frozenset[str] = frozenset()
    answers: bool = False

    @classmethod
    def of(cls, config: EmbeddingConfig) -> Visibility:
        """Return the columns of features that are not private, neither by their vocabulary nor by their column."""
        return cls.from_json(public_facts(config))

    @classmethod
    def from_json(cls, values: Json) -> Visibility:
        """Read what `to_json` gave."""
        return cls(frozenset(values["columns"]), bool(values["answers"]))

    def to_json(self) -> Json:
        """Return JSON values."""
        return {"columns": sorted(self.columns), "answers": self.answers}

    def both(self, other: Visibility) -> Visibility:
        """Return what may be shown by both."""
        return Visibility(self.columns & other.columns, self.answers and other.answers)

    def with_columns(self, columns: Iterable[str]) -> Visibility:
        """Return a copy that also shows these columns."""
        return dataclasses.replace(self, columns=self.columns | set(columns))

    def shown(self, column: str, value: Value) -> str:
        """Show a value of a column: numbers that are not whole always, tokens and whole numbers if they are public."""
        if isinstance(value, float) and (self.answers or not value.is_integer()):
            return f"{value:.6g}"  # if anything is private, a whole number may be a token
        public = column in self.columns or column in set(map(input_name, self.columns))
        token = value if isinstance(value, bytes) else str(int(value)).encode()
        return shown_token(token, private=not public)


class RequestRows:
    """The rows of a request.

    A request of serialized tf.Examples has their columns, any other one column for each input.

    Attributes:
      count: number of rows; None if the inputs do not have the same first dimension.
    """

    def __init__(self, inputs: Mapping[str, npt.NDArray[Any]]) -> None:
        self._inputs = inputs
        sizes = {len(value) if value.ndim else None for value in inputs.values()}
        self.count = sizes.pop() if len(sizes) == 1 else None

    def columns(self, row: int) -> dict[str, list[Value]]:
        """Return the values of a row by column; those that mean "missing" are left out."""
        inputs = {name: value[row] for name, value in self._inputs.items()}
        if inputs.keys() == {_EXAMPLES} and isinstance(inputs[_EXAMPLES], bytes):
            columns = _columns_of(inputs[_EXAMPLES])
        else:
            columns = {name: np.ravel(value).tolist() for name, value in inputs.items()}
        return {name: [item for item in values if not _is_missing(item)] for name, values in columns.items()}

    def input_of(self, row: int) -> dict[str, bytes]:
        """Return the request of one row: serialized TensorProto by input name."""
        return {
            name: tf.make_tensor_proto(value[row : row + 1], dtype=tf.as_dtype(value.dtype)).SerializeToString()
            for name, value in self._inputs.items()
        }

    def slices(self, columns: Collection[str], public: Visibility) -> dict[tuple[str, str], npt.NDArray[np.bool_]]:
        """Return by column and shown value which rows have that value; a row of several values is in several slices."""
        found: dict[tuple[str, str], npt.NDArray[np.bool_]] = {}
        for row in range(self.count or 0) if columns else ():
            values = self.columns(row)
            for column in columns:
                given = values.get(column, values.get(input_name(column), []))
                for text in {public.shown(column, item) for item in given} or {_ABSENT}:
                    found.setdefault((column, text), np.zeros(self.count or 0, bool))[row] = True
        return found

    def shown(self, row: int, public: Visibility) -> dict[str, str]:
        """Return the row as texts by column; of a long list the first values."""
        return {name: _shown(name, values, public) for name, values in sorted(self.columns(row).items())}


def _is_missing(value: Value) -> bool:
    return value in MISSING.values() or (isinstance(value, float) and math.isnan(value))


def _shown(name: str, values: Sequence[Value], public: Visibility) -> str:
    texts = [public.shown(name, value) for value in values[:_LONGEST_LIST]]
    more = f" and {len(values) - _LONGEST_LIST} more" if len(values) > _LONGEST_LIST else ""
    return ", ".join(texts) + more


def _columns_of(row: bytes) -> dict[str, list[Value]]:
    try:
        features = tf.train.Example.FromString(row).features.feature
    except DecodeError:
        return {}  # the versions say what they make of it
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    return {name: list(getattr(features[name], kind).value) if kind else [] for name, kind in kinds.items()}

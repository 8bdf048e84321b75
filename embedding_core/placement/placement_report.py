"""Defines the report on the devices of tables and lookups, in plain values and without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embedding_core.errors import Finding
from embedding_core.schema import Json


@dataclasses.dataclass(frozen=True, kw_only=True)
class TablePlace:
    """The devices of one table.

    Attributes:
      name: name given by the caller.
      devices: device of each copy; one if the table is not mirrored.
      dtype: dtype of its values.
      shape: rows and dim.
      bytes: size of one copy.
    """

    name: str
    devices: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookup:
    """The device of one lookup.

    Attributes:
      operation: type and name in the graph.
      table: name of the table; None if it is unknown.
      device: device that it ran on.
      compiled: whether XLA compiled it.
    """

    operation: str
    table: str | None
    device: str
    compiled: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """The real devices of tables and lookups of one call.

    Attributes:
      tables: the tables given by the caller.
      lookups: all lookups of the call.
      silent: findings on what TensorFlow does silently, such as clamping ids.
      for_gpu: what is missing for each table to be on a GPU; empty if it is on one.
    """

    tables: Sequence[TablePlace]
    lookups: Sequence[Lookup]
    silent: Sequence[Finding]
    for_gpu: Mapping[str, Sequence[str]]

    def to_json(self) -> Json:
        """Return the report as a JSON object."""
        return dataclasses.asdict(self)

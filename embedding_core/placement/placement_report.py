"""Where tables and lookups are, and what is silent about it: plain values. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

SilentKind: TypeAlias = Literal["clamped ids", "copies", "device", "float ids", "no gradient", "whole table"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Silent:
    """One thing that TensorFlow does without saying so.

    Attributes:
      kind: which of them.
      what: where it was seen.
      rule: what TensorFlow does.
      remedy: what to do.
    """

    kind: SilentKind
    what: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.rule}; {self.remedy}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class TablePlace:
    """Where one table is.

    Attributes:
      name: as given.
      devices: of its copies; one where it is not mirrored.
      dtype: of its values.
      shape: rows and dim.
      bytes: of one copy.
    """

    name: str
    devices: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookup:
    """Where one lookup ran.

    Attributes:
      operation: its type and name in the graph.
      table: the table's name, or None where it could not be told.
      device: where it ran.
      compiled: whether XLA compiled it.
    """

    operation: str
    table: str | None
    device: str
    compiled: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where tables and lookups of one call really were.

    Attributes:
      tables: by the names given.
      lookups: every lookup of the call.
      silent: what TensorFlow did without saying so.
      for_gpu: per table what it lacks to be on a GPU; empty where it is on one.
    """

    tables: Sequence[TablePlace]
    lookups: Sequence[Lookup]
    silent: Sequence[Silent]
    for_gpu: Mapping[str, Sequence[str]]

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return dataclasses.asdict(self)

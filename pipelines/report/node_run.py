"""Describes what happened to one node in one run."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

State: TypeAlias = Literal["running", "executed", "cached", "skipped", "failed", "damaged"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeRun:
    """One node of one run.

    Attributes:
      node: id of the node.
      index, count: its position among the nodes of the pipeline, from 1, and their number.
      state: what happened to it; "damaged" if it did not run because one of its inputs is damaged.
      seconds: wall time that it took; 0 while it runs.
      execution: id of its execution in ML Metadata, or None if it has none.
    """

    node: str
    index: int
    count: int
    state: State
    seconds: float = 0.0
    execution: int | None = None

"""Names the artifacts of previous runs that a run starts from."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreviousRun:
    """Artifacts of previous runs that a run starts from; in a compiled pipeline the URIs are runtime parameters.

    Attributes:
      checkpoint: URI of an EmbeddingCheckpoint to start the tables from, or None to start cold.
      baseline: URI of a Model that the Evaluator compares with, or None.
      shadowed: URI of a pushed version that Shadow compares with, or None.
      vocabularies: URI of Vocabularies that the new ones extend, or None to count from this run's data alone.
      transform_graph: URI of the TransformGraph to keep, or None to analyse this run's data.
      table_configs: URI of the TableConfigs that the checkpoint was trained with, to compare limits with; or None.
      repeats: description of a previous training on this run's data, which this run repeats or replaces; or None.
      notes: sentences for the console and the report: what was chosen and why.
    """

    checkpoint: str | None = None
    baseline: str | None = None
    shadowed: str | None = None
    vocabularies: str | None = None
    transform_graph: str | None = None
    table_configs: str | None = None
    repeats: str | None = None
    notes: tuple[str, ...] = ()

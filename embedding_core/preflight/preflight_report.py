"""Defines the report of a preflight, in plain JSON values. Does not use TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embedding_core.errors import Finding
from embedding_core.schema import Json

NECESSARY = (
    "Green is necessary, not sufficient: nothing ran, and XLA compiled for a CPU. Only the TPU itself shows speed, "
    "numerics, the host's input pipeline and the memory of activations."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a TPU slice would run, and the problems found.

    Attributes:
      topology: name, hosts, cores_per_host, bytes_per_core and placement of the slice.
      hardware: "V1" for an embedding engine, "V2" for SparseCores, "V0" for neither.
      sizes: source of the numbers of rows, in words.
      batch: "rows" of a global batch, "cores", and "rows_per_core", with which the step was traced.
      tables: rows, dim, combiner, features, optimizer, learning rate, rows per host and bytes of each table.
      features: table, shape of the activations on a core, and max_sequence_length of each feature.
      memory: plan of `embedding_core.planning.topology.memory_plan`.
      program: summary of the traced program; None if tracing failed.
      further: results of further checks, by name.
      findings: problems to fix; the report is green if there are none.
      notes: further information, and what only the TPU can show.
      meaning: what a report without findings means.
    """

    topology: Json
    hardware: str
    sizes: str
    batch: Mapping[str, int]
    tables: Sequence[Json]
    features: Sequence[Json]
    memory: Json
    program: Json | None
    further: Mapping[str, Json]
    findings: Sequence[Finding]
    notes: Sequence[str]
    meaning: str = NECESSARY

    @property
    def green(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def to_json(self) -> Json:
        """Return the report as a JSON object; each further check is a key of it."""
        fields = dataclasses.asdict(self)
        further, meaning = fields.pop("further"), fields.pop("meaning")
        return {"green": self.green, "necessary_not_sufficient": meaning, **fields, **further}

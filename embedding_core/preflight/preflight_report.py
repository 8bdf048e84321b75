"""What a preflight found out: plain values, which JSON holds. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "batch", "compile", "dtype", "hyperparameter", "input", "kernel", "memory", "shape", "step", "untrained"
]

NECESSARY = (
    "Green is necessary, not sufficient: nothing ran, and XLA compiled for a CPU. Speed, numerics, the host's input "
    "pipeline and the memory of activations show on the TPU alone."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that would fail, or silently mean something else, on the TPU.

    Attributes:
      kind: which check found it.
      what: what was given.
      rule: what the TPU asks for.
      remedy: what to do.
    """

    kind: Kind
    what: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.rule}; {self.remedy}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a TPU slice would be given, and what is wrong with it.

    Attributes:
      topology: name, hosts, cores_per_host, bytes_per_core and placement of the slice.
      hardware: "V1" for an embedding engine, "V2" for SparseCores, "V0" for neither.
      sizes: where the numbers of rows come from, in words.
      batch: "rows" of a global batch, "cores", and "rows_per_core", with which the step was traced.
      tables: per table its rows, dim, combiner, features, optimizer and learning rate, rows per host and bytes.
      features: per feature its table, activations' shape on a core, and max_sequence_length.
      memory: as of `embedding_core.planning.topology.memory_plan`.
      program: what was traced, or None where tracing failed.
      findings: what is to be mended; none is green.
      notes: what can only be known on the TPU, or is good to know.
    """

    topology: Mapping[str, Any]
    hardware: str
    sizes: str
    batch: Mapping[str, int]
    tables: Sequence[Mapping[str, Any]]
    features: Sequence[Mapping[str, Any]]
    memory: Mapping[str, Any]
    program: Mapping[str, Any] | None
    findings: Sequence[Finding]
    notes: Sequence[str]

    @property
    def green(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {"green": self.green, "necessary_not_sufficient": NECESSARY, **dataclasses.asdict(self)}

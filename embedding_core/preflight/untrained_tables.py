"""Finds tables that the traced program does not train."""

from __future__ import annotations

import re
from collections.abc import Iterator

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import Finding
from embedding_core.preflight.topology_strategy import Hardware
from embedding_core.preflight.trace import Traced

_WRITING = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")
_SENDING = ("SendTPUEmbeddingGradients", "XlaSparseDenseMatmulGrad")


def untrained_findings(traced: Traced, config: EmbeddingConfig, hardware: Hardware) -> Iterator[Finding]:
    """Find tables that no operation of the program updates. An engine (V1, V2) trains all tables or none."""
    if hardware == "V0":
        written = _written(traced)
        names = [table.name for table in config.tables if not any(_is_of(name, table.name) for name in written)]
    else:
        sends = any(op.type.startswith(_SENDING) for op in traced.on_core)
        names = [] if sends else [table.name for table in config.tables]
    if names:
        yield Finding(
            kind="untrained",
            what=f"tables {', '.join(map(repr, names))}, which nothing in the step updates",
            rule="an engine trains its tables only in `apply_gradients`; without one (V0) the step's optimizer does",
            remedy="call `apply_gradients` with the activations' gradients, or on V0 with those of `embedding_tables`",
        )


def _written(traced: Traced) -> set[str]:
    """Collect the names of the variables that a core writes."""
    captured = {inner.name: outer.op.name for outer, inner in traced.graph.captures if outer.dtype == tf.resource}
    handles = [op.inputs[0] for op in traced.on_core if op.type.startswith(_WRITING)]
    sources = [one.op.inputs[0].name if one.op.type == "TPUReplicatedInput" else one.name for one in handles]
    return {captured[source] for source in sources if source in captured}


def _is_of(variable: str, table: str) -> bool:
    """Return whether a variable has a table's name, to which TensorFlow may have appended a number."""
    return re.fullmatch(rf"{re.escape(table)}(?:_\d+)?", variable) is not None

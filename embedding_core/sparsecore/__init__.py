"""Lays tables out on SparseCores (TPU v5p and v6e), and computes the limits that their programs are compiled with."""

from embedding_core.sparsecore.layout import (
    Slice,
    SparseCoreEmbeddingConfig,
    Stack,
    StackedTable,
    TableShape,
    place_tables,
    slice_of,
    stack_tables,
    stacks_of,
)
from embedding_core.sparsecore.limits import (
    BatchIds,
    Ids,
    LimitCounter,
    Limits,
    StackCount,
    count_batch,
    drift_of,
    larger_limits,
    limits_in_all_forms,
)

__all__ = [
    "BatchIds",
    "Ids",
    "LimitCounter",
    "Limits",
    "Slice",
    "SparseCoreEmbeddingConfig",
    "Stack",
    "StackCount",
    "StackedTable",
    "TableShape",
    "count_batch",
    "drift_of",
    "larger_limits",
    "limits_in_all_forms",
    "place_tables",
    "slice_of",
    "stack_tables",
    "stacks_of",
]

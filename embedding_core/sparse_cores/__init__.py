"""Room of SparseCores (TPU v5p and v6e): lays tables out on them, emulates them, and computes their programs' limits.

Importing the package loads no TensorFlow.
"""

from embedding_core.sparse_cores.layout import (
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
from embedding_core.sparse_cores.limits import (
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

"""Stacks the tables of a model as SparseCores hold them, and describes the layout in TensorFlow's proto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensorflow.core.tpu.kernels.sparse_core_layout_pb2 import SparseCoreTableLayout

from embedding_core.sparsecore import Slice, Stack, StackedTable, TableShape, stack_tables
from embedding_core.translate import Model


def stacks_of_model(
    model: Model, samples: Mapping[str, int], slice_: Slice, *, apart: bool = False
) -> tuple[Stack, ...]:
    """Stack tables in the order of their names, by padded width, optimizer and quantization.

    `sparsecore.stacks_of` does the same for an EmbeddingConfig.

    Args:
      model: the tables.
      samples: number of samples of a global batch that look up each table.
      slice_: the SparseCores.
      apart: whether every table is a stack of its own.
    """
    optimizers = [table.optimizer for table in model.tables]  # equal ones need not have equal hashes
    shapes = [
        TableShape(
            table.name,
            table.rows,
            table.dim,
            samples[table.name],
            (optimizers.index(table.optimizer), table.quantization),
        )
        for table in sorted(model.tables, key=lambda table: table.name)
    ]
    return stack_tables(shapes, slice_, apart=apart)


def layouts_of(stacks: Sequence[Stack], dims: Mapping[str, int], slice_: Slice) -> dict[str, SparseCoreTableLayout]:
    """Describe where each table is, by name.

    Args:
      stacks: the stacks.
      dims: number of columns of each table.
      slice_: the SparseCores.
    """
    return {
        table.name: SparseCoreTableLayout(
            table_name=table.name,
            stacked_table_name=stack.name,
            num_sparse_cores=slice_.shards,
            num_partitions=slice_.chips,
            total_rows_per_sparse_core_shard=stack.rows_per_shard,
            unsharded_shape=[table.rows, dims[table.name]],
            unsharded_padded_shape=[table.padded_rows, stack.dim],
            sparse_core_shard_row_offset=table.first_row,
            sparse_core_shard_rotation=table.rotation,
        )
        for stack in stacks
        for table in stack.tables
    }


def stacks_of_layouts(layouts: Iterable[SparseCoreTableLayout]) -> dict[str, Stack]:
    """Return the stacks that layouts describe, by name: the reverse of `layouts_of`."""
    members: dict[str, list[SparseCoreTableLayout]] = {}
    for layout in sorted(layouts, key=lambda layout: layout.sparse_core_shard_row_offset):
        members.setdefault(layout.stacked_table_name, []).append(layout)
    return {
        name: Stack(
            name,
            tuple(_place_of(layout) for layout in tables),
            tables[0].unsharded_padded_shape[1],
            tables[0].total_rows_per_sparse_core_shard,
        )
        for name, tables in members.items()
    }


def _place_of(layout: SparseCoreTableLayout) -> StackedTable:
    return StackedTable(
        layout.table_name,
        layout.unsharded_shape[0],
        layout.unsharded_padded_shape[0],
        layout.sparse_core_shard_row_offset,
        layout.sparse_core_shard_rotation,
    )

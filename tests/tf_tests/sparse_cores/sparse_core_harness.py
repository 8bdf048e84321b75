"""Points TensorFlow's own tests of SparseCores at the simulated ones, and at this project's layout functions.

The tests run unmodified from a checkout of TensorFlow. This module provides the private members that they read, and
names that TensorFlow 2.16 does not have yet.
"""

import sys
import types

import numpy as np
import tensorflow as tf
from tensorflow.python.tpu import tpu_embedding_v3, tpu_embedding_v3_utils, tpu_replication

from embedding_core.engines import simulated_tpu
from embedding_core.sparse_cores import SparseCoreEmbeddingConfig, Stack, StackedTable, tpu_embedding
from embedding_core.sparse_cores.stack_feeding import stacks_of_layouts

SPARSE_CORES = 4  # of a chip; the tests have this number in their code
_ADAPTER = "tensorflow.python.tpu.tpu_embedding_v3_checkpoint_adapter"


class ShardedVariable:
    """A stack as the tests read it: the rows of each chip."""

    def __init__(self, variable, strategy):
        self._variable = variable
        self._devices = list(strategy.extended.worker_devices)

    @property
    def values(self):
        return [tf.Variable(rows) for rows in tf.split(self._variable, len(self._devices))]

    def read_from_device(self, device):
        return self.values[self._devices.index(device)].read_value()


class TPUEmbeddingV2(tpu_embedding.TPUEmbeddingV2):
    """The class under test, with the private members that the tests read."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._num_sc_per_chip = SPARSE_CORES
        self._batch_initialize_tables = True  # a test replaces it

    @property
    def _variables(self):
        strategy = self._state.strategy
        return {
            stack: {slot: ShardedVariable(variable, strategy) for slot, variable in own.items()}
            for stack, own in self.variables.items()
        }

    @property
    def embedding_tables(self):
        return {stack: ShardedVariable(own, self._state.strategy) for stack, own in super().embedding_tables.items()}

    def _copy_tensors_to_device(self, partitioned_tensors):
        return partitioned_tensors


def one_table(rows, dim, cores, *, first_row=0, rotation=0, rows_per_shard=None):
    """Return a table of padded rows in a stack, in this project's layout."""
    per_shard = rows // cores
    table = StackedTable("t", rows, rows, first_row, rotation)
    return table, Stack("t", (table,), dim, rows_per_shard or per_shard)


def from_shards(stack, placed, dims):
    """Return the values of each table, from [shards, rows per shard, dim], with the number of columns in `dims`."""
    shards, values = len(placed), {}
    for table in stack.tables:
        ids = np.arange(table.rows)
        values[table.name] = placed[table.shard_of(ids, shards), table.row_of(ids, shards), : dims[table.name]]
    return values


def unshuffle_from_sc_to_cpu(t, num_sparse_cores, offset_in_shard, size_in_shard, shard_rotation=0):
    rows_per_shard = t.shape[0] // num_sparse_cores
    _, stack = one_table(
        size_in_shard * num_sparse_cores, t.shape[1], num_sparse_cores,
        first_row=offset_in_shard, rotation=shard_rotation, rows_per_shard=rows_per_shard,
    )  # fmt: skip
    placed = np.reshape(t, (num_sparse_cores, rows_per_shard, -1))
    return from_shards(stack, placed, {"t": t.shape[1]})["t"]


def remove_padding_from_sc(value_in_checkpoint, variable_shape):
    rows, dim = variable_shape
    table, stack = one_table(value_in_checkpoint.shape[0], value_in_checkpoint.shape[1], 1)
    kept = stack._replace(tables=(table._replace(rows=min(rows, table.rows)),))
    return from_shards(kept, np.asarray(value_in_checkpoint)[np.newaxis], {"t": dim})["t"]


def map_indices_in_shard(num_sparse_cores, offset_in_shard, shard_rotation, row_indices):
    table = StackedTable("t", 0, 0, offset_in_shard, shard_rotation)
    return table.shard_of(row_indices, num_sparse_cores), table.row_of(row_indices, num_sparse_cores)


def shard_initializer(strategy, initializer):
    """Make an initializer of shards from one of whole tables, which returns the rows as they lie in the shards."""
    cores = strategy.num_replicas_in_sync * strategy.sparse_cores

    def of_shard(shape, dtype, shard_info=None):
        rows = initializer(shape, dtype)
        if shard_info is None:
            return rows
        _, stack = one_table(*shape, cores)
        placed = stack.to_shards({"t": rows.numpy()}, cores).reshape(shape)
        return tf.constant(placed[shard_info.offset[0] :][: shard_info.shape[0]])

    return of_shard


class ReshardCallback:
    """Lays out the tables of one stack for a target; they are whole, or stacked as the checkpoint says."""

    def __init__(self, target, source=()):
        self._to_shard_layout = sorted(target, key=lambda layout: layout.sparse_core_shard_row_offset)
        self._source = source
        self._checkpoint_local_names = [layout.table_name for layout in self._to_shard_layout]

    def object_name(self):
        return self._to_shard_layout[0].stacked_table_name

    def update_restore_inputs(self, key, spec):
        del spec
        if self._source:
            first = self._source[0]
            rows = first.num_sparse_cores * first.total_rows_per_sparse_core_shard
            return [key], [_whole(rows, first.unsharded_padded_shape[1])]
        names = self._checkpoint_local_names
        keys = [key.replace(f"/{names[0]}/", f"/{name}/") for name in names]
        return keys, [_whole(*layout.unsharded_shape) for layout in self._to_shard_layout]

    def reshard(self, values, spec):
        if not self._source:
            tables = dict(zip(self._checkpoint_local_names, map(np.asarray, values), strict=True))
        else:
            stack, cores = _stack_of(self._source)
            placed = np.reshape(values[0], (cores, -1, stack.dim))  # a test says fewer rows of a shard than it has
            tables = from_shards(stack, placed, {table.table_name: table.unsharded_shape[1] for table in self._source})
        stack, cores = _stack_of(self._to_shard_layout)
        start, count = (int(number) for number in spec.split()[-1].split(":")[0].split(","))
        start -= start % stack.rows_per_shard  # a test asks from the middle of a shard, and means its beginning
        return stack.to_shards(tables, cores).reshape(-1, stack.dim)[start : start + count]


def _whole(rows, dim):
    return f"{rows} {dim} 0,{rows}:0,{dim}"


def _stack_of(layouts):
    (stack,) = stacks_of_layouts(layouts).values()
    return stack, layouts[0].num_sparse_cores


class TpuEmbeddingV3CheckpointAdapter:
    """The adapter under test: which stacks of a checkpoint are laid out anew."""

    def __init__(self, layouts=None):
        self._stored = {layout.table_name: layout for layout in (layouts.tables if layouts else ())}
        self._callbacks = {}

    def is_layouts_same(self, layouts):
        return stacks_of_layouts(self._stored.values()) == stacks_of_layouts(layouts.values()) and all(
            self._stored[name].num_sparse_cores == layout.num_sparse_cores for name, layout in layouts.items()
        )

    def initialize_reshard_callbacks(self, layouts):
        for stack in stacks_of_layouts(layouts.values()):
            target = [layout for layout in layouts.values() if layout.stacked_table_name == stack]
            source = [layout for layout in self._stored.values() if layout.stacked_table_name == stack]
            callback = ReshardCallback(target, source)
            self._callbacks[stack if source else callback._checkpoint_local_names[0]] = callback

    def get_reshard_callback(self, name):
        return self._callbacks.get(name)


class Resolver:
    """Describes the simulated TPU."""

    def __init__(self, chips):
        self.chips = chips

    def get_tpu_system_metadata(self):
        return types.SimpleNamespace(num_cores=self.chips)


def install(hosts, chips_per_host):
    """Make the test modules use simulated SparseCores on that number of chips."""
    from tensorflow.python.distribute import tpu_strategy
    from tensorflow.python.distribute.cluster_resolver import tpu_cluster_resolver
    from tensorflow.python.eager import remote
    from tensorflow.python.tpu import device_assignment

    class TPUStrategy:  # a class, as TensorFlow asks what is an instance of it
        def __new__(cls, *_, **__):
            strategy = simulated_tpu(
                hosts=hosts, cores_per_host=chips_per_host, embedding_feature="V2", sparse_cores=SPARSE_CORES
            )
            strategy.extended._tpu_devices = np.array(strategy.extended.worker_devices)[:, np.newaxis]
            strategy.extended.tpu_hardware_feature = types.SimpleNamespace(num_embedding_devices_per_chip=SPARSE_CORES)
            return strategy

    tpu_cluster_resolver.TPUClusterResolver = lambda *_, **__: Resolver(hosts * chips_per_host)
    tpu_cluster_resolver.initialize_tpu_system = lambda *_: None
    tpu_cluster_resolver.shutdown_tpu_system = lambda *_: None
    remote.connect_to_cluster = lambda *_: None
    device_assignment.DeviceAssignment.build = lambda *_, **__: None
    tpu_strategy.TPUStrategy = tpu_strategy.TPUStrategyV2 = TPUStrategy
    tpu_replication.outside_compilation = lambda run, *args, **kwargs: run(*args, **kwargs)
    tpu_embedding_v3.TPUEmbeddingV2 = TPUEmbeddingV2
    tpu_embedding_v3.SparseCoreEmbeddingConfig = SparseCoreEmbeddingConfig
    tpu_embedding_v3.TPUEmbeddingShardedVariable = ShardedVariable
    for function in (unshuffle_from_sc_to_cpu, remove_padding_from_sc, map_indices_in_shard, shard_initializer):
        setattr(tpu_embedding_v3_utils, function.__name__, function)
    adapter = types.ModuleType(_ADAPTER)
    adapter.TpuEmbeddingV3CheckpointAdapter = TpuEmbeddingV3CheckpointAdapter
    sys.modules[_ADAPTER] = adapter
    setattr(sys.modules["tensorflow.python.tpu"], _ADAPTER.rpartition(".")[2], adapter)

"""Stacked tables, as SparseCores hold them, are unstacked into the tables that TensorFlow's own function returns."""

import os

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow.core.tpu.kernels import sparse_core_layout_pb2
from tensorflow.python.tpu import tpu_embedding_v3_utils as upstream

from embedding_core.checkpoint import BundleReader, retrieve
from embedding_core.config import EmbeddingConfig
from embedding_core.engines import HostEngine, TPUEmbedding
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import SGD, Adagrad, Optimizer
from embedding_core.translate import config_to_tensorflow
from tests.support.tables import config_of

KEY = "model/emb/{}/.ATTRIBUTES/VARIABLE_VALUE"
SHAPES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2)), min_size=1, max_size=4)


def config(sizes: list[int], dim: int, optimizer: Optimizer) -> EmbeddingConfig:
    settings = {"dim": dim, "optimizer": optimizer}
    return config_of(**{f"t{number}": {"vocabulary_size": size, **settings} for number, size in enumerate(sizes)})


def layouts_of(config: EmbeddingConfig, padding: list[int], cores: int, partitions: int, stack: str):
    """Return the layouts of a stack of tables, table i rotated by `i * cores // partitions % cores` cores."""
    layouts, offset = sparse_core_layout_pb2.SparseCoreTableLayouts(), 0
    for number, (table, more) in enumerate(zip(config.tables, padding, strict=True)):
        rows = (-(-table.vocabulary_size // cores) + more) * cores
        layouts.tables.add(
            table_name=table.name, stacked_table_name=stack, num_sparse_cores=cores, num_partitions=partitions,
            unsharded_shape=[table.vocabulary_size, table.dim], unsharded_padded_shape=[rows, -(-table.dim // 8) * 8],
            sparse_core_shard_row_offset=offset, sparse_core_shard_rotation=number * cores // partitions % cores,
        )  # fmt: skip
        offset += rows // cores
    for layout in layouts.tables:
        layout.total_rows_per_sparse_core_shard = offset
    return layouts


def write(folder, layouts, keys: list[str], partitions: int) -> tuple[str, dict[str, np.ndarray]]:
    """Write the stack and its slots, each in one slice per partition, and the layouts; return prefix and values."""
    first = layouts.tables[0]
    shape = (first.num_sparse_cores * first.total_rows_per_sparse_core_shard, first.unsharded_padded_shape[1])
    stacks = {key: np.random.default_rng(len(key)).normal(size=shape).astype(np.float32) for key in keys}
    names, specs, tensors = [], [], []
    for key, rows in stacks.items():
        for part, block in enumerate(np.split(rows, partitions)):
            names.append(KEY.format(key.replace("/", ".S")))
            specs.append(f"{shape[0]} {shape[1]} {part * len(block)},{len(block)}:0,{shape[1]}")
            tensors.append(tf.constant(block))
    prefix, order = str(folder / "ckpt"), np.argsort(names, kind="stable")
    parts = [f"{prefix}-part-{index}" for index in range(partitions + 1)]
    for index in range(partitions):
        mine = [at for at in order if at % partitions == index]
        tf.raw_ops.SaveV2(
            prefix=parts[index], tensor_names=[names[at] for at in mine], shape_and_slices=[specs[at] for at in mine],
            tensors=[tensors[at] for at in mine],
        )  # fmt: skip
    said = tf.constant(layouts.SerializeToString())
    name = KEY.format(upstream.SPARSECORE_LAYOUTS_CHECKPOINT_KEY)
    tf.raw_ops.SaveV2(prefix=parts[-1], tensor_names=[name], shape_and_slices=[""], tensors=[said])
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=False)
    return prefix, stacks


def by_tensorflow(stack: np.ndarray, layout) -> np.ndarray:
    found = upstream.unshuffle_from_sc_to_cpu(
        tf.constant(stack), layout.num_sparse_cores, layout.sparse_core_shard_row_offset,
        layout.unsharded_padded_shape[0] // layout.num_sparse_cores, layout.sparse_core_shard_rotation,
    )  # fmt: skip
    return upstream.remove_padding_from_sc(found, tuple(layout.unsharded_shape)).numpy()


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shapes=SHAPES,
    dim=st.integers(1, 9),
    cores=st.sampled_from([(4, 1), (4, 2), (8, 4)]),
    slice_bytes=st.integers(1, 999),
)
def test_stacked_tables_are_those_that_tensorflow_reads(tmp_path_factory, shapes, dim, cores, slice_bytes):
    folder = tmp_path_factory.mktemp("stacked")
    made = config([rows for rows, _ in shapes], dim, Adagrad())
    stack = "_".join(table.name for table in made.tables)
    layouts = layouts_of(made, [more for _, more in shapes], *cores, stack)
    prefix, stacks = write(folder, layouts, [stack, f"{stack}/accumulators"], cores[1])
    retrieve(prefix, made, folder / "out", vocabularies={}, slice_bytes=slice_bytes)
    reader = tf.train.load_checkpoint(os.path.join(folder, "out", "tables"))
    for layout in layouts.tables:
        for ending in ("", "/accumulators"):
            expected = by_tensorflow(stacks[stack + ending], layout)
            np.testing.assert_array_equal(reader.get_tensor(layout.table_name + ending), expected)


def test_stack_that_does_not_fit_names_every_difference(tmp_path):
    made = config([5, 7], 3, SGD())
    layouts = layouts_of(made, [0, 0], 4, 2, "t0_t1")
    layouts.tables[0].table_name = "other"
    layouts.tables[1].unsharded_shape[0] = 6
    prefix, _ = write(tmp_path, layouts, ["t0_t1"], 2)
    words = r"'other' belongs to no configured table; 't0' is missing; 't1' has shape \[6, 3\] instead of \[7, 3\]"
    with pytest.raises(CheckpointError, match=words):
        retrieve(prefix, made, tmp_path / "out", vocabularies={})
    with pytest.raises(CheckpointError, match=r"'t1/accumulators' is missing: its stack .*Saccumulators"):
        retrieve(prefix, config([5, 6], 3, Adagrad()), tmp_path / "out", vocabularies={})
    layouts.tables[1].sparse_core_shard_row_offset += 1
    prefix, _ = write(tmp_path / "beyond", layouts, ["t0_t1"], 2)
    with pytest.raises(CheckpointError, match="'t1' does not fit into its stack"):
        retrieve(prefix, config([5, 6], 3, SGD()), tmp_path / "out", vocabularies={})
    assert not (tmp_path / "out").exists()


def test_stack_without_a_layout_is_refused_by_name(tmp_path):
    """TensorFlow 2.16 writes stacks without their layouts."""
    stack = tf.train.Checkpoint(t0_t1=tf.Variable(tf.zeros([16, 8])))
    prefix = tf.train.Checkpoint(emb=stack).write(str(tmp_path / "ckpt"))
    with pytest.raises(CheckpointError, match=r"\['t0_t1'\]: tables that SparseCores hold stacked.*as `slice_`"):
        retrieve(prefix, config([5, 7], 8, SGD()), tmp_path / "out", vocabularies={})
    assert BundleReader(prefix).entries


def test_stacks_with_a_layout_are_not_restored_as_tables(tmp_path):
    """A table of 32 rows and 8 columns on 4 SparseCores has the name and shape of its stack."""
    made = config([32], 8, SGD())
    with_graph = tf.train.Checkpoint(emb=tf.train.Checkpoint(t0=tf.Variable(tf.ones([32, 8]))))
    setattr(with_graph.emb, upstream.SPARSECORE_LAYOUTS_CHECKPOINT_KEY, tf.Variable(b"layouts"))
    prefix = with_graph.write(str(tmp_path / "graph"))
    for make in (lambda: HostEngine(made).tables, lambda: TPUEmbedding(config_to_tensorflow(made), None)):
        with pytest.raises(CheckpointError, match="as SparseCores stack them: write them by name with"):
            tf.train.Checkpoint(emb=make()).read(prefix)

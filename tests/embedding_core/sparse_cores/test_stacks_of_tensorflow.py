"""The stacks of TensorFlow's own C++: by its wrapper in 2.16, and by `tpu_embedding_v3.py` in later versions."""

import dataclasses

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from embedding_core.optimizers import Adagrad
from embedding_core.sparse_cores import Limits, Slice, TableShape, limits_in_all_forms, stack_tables, stacks_of
from tests.support.tables import config_of

_TABLE = st.tuples(
    st.sampled_from([64, 1000, 2**24, 2**25]),
    st.sampled_from([8, 16, 64]),
    st.sampled_from([64, 2**14, 2**15 - 8, 2**16]),
    st.integers(0, 1),
)
_API = tf.tpu.experimental.embedding
_newer = pytest.mark.skipif(
    not hasattr(_API, "SparseCoreEmbeddingConfig"),
    reason=f"TensorFlow {tf.__version__} has no SparseCoreEmbeddingConfig",
)


@settings(max_examples=50, deadline=None)
@given(st.lists(_TABLE, min_size=1, max_size=8), st.sampled_from([1, 2, 8]))
def test_stacks_are_those_of_tensorflow_2_16(tables, chips):
    wrapper = pytest.importorskip("tensorflow.python.tpu._pywrap_tpu_embedding")
    slice_ = Slice(chips, 4)
    shapes, groups = [], {}
    for index, (rows, dim, samples, group) in enumerate(tables):
        padded = -(-rows // (8 * slice_.shards)) * 8 * slice_.shards
        shapes.append(TableShape(f"t{index}", padded, dim, samples * chips, group))
        groups.setdefault((dim, group), len(groups))
    expected = wrapper.stack_tables(
        [shape.rows for shape in shapes],
        [shape.dim for shape in shapes],
        [shape.samples // chips for shape in shapes],
        [groups[shape.dim, shape.group] for shape in shapes],
        [shape.name for shape in shapes],
        chips,
    )
    made = [[table.name for table in stack.tables] for stack in stack_tables(shapes, slice_)]
    assert sorted(made) == sorted(expected)


@_newer
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 40)), min_size=1, max_size=8), st.sampled_from([2, 4]))
def test_layout_is_that_of_later_versions(sizes, per_chip):
    from tensorflow.python.tpu import tpu_embedding_v3

    names = [f"t{index}" for index in range(len(sizes))]
    optimizer, batch, slice_ = _API.Adagrad(0.1), 2**12, Slice(4, per_chip)
    tables = [
        _API.TableConfig(rows, dim, optimizer=optimizer, name=name)
        for name, (rows, dim) in zip(names, sizes, strict=True)
    ]
    features = [(table.name, _API.FeatureConfig(table, output_shape=[batch // slice_.chips])) for table in tables]
    stack = tpu_embedding_v3._stack_tables_with_same_table_dim_and_optimizer
    expected = stack(tables, features, slice_.chips, per_chip, None).table_to_stacked_table_offset
    given = [{"vocabulary_size": rows, "dim": dim, "optimizer": Adagrad(learning_rate=0.1)} for rows, dim in sizes]
    config = config_of(**dict(zip(names, given, strict=True)))
    made = {
        table.name: (stack.name, table.first_row * slice_.shards, table.rotation)
        for stack in stacks_of(config, slice_, batch)
        for table in stack.tables
    }
    assert made == expected


@_newer
def test_form_is_what_tensorflow_takes():
    sizes = {field.name: 8 for field in dataclasses.fields(Limits)}
    limits = Limits(**{**sizes, "stack": "a_b", "tables": ("a", "b")})
    config = _API.SparseCoreEmbeddingConfig(**limits_in_all_forms([limits], [limits])["tensorflow"])
    assert (config.max_ids_per_table, config.max_unique_ids_per_table) == ({"a_b": 8}, {"a_b": 8})

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedding_core.errors import ConfigError
from embedding_core.optimizers import SGD, Adagrad
from embedding_core.planning.topology import named_topology
from embedding_core.sparse_cores import Slice, TableShape, slice_of, stack_tables, stacks_of
from tests.support.tables import config_of

pytestmark = pytest.mark.light


@pytest.mark.parametrize(
    ("topology", "expected"), [("v5p-16", Slice(8, 4)), ("v6e-16", Slice(16, 2)), ("v4-8", None), ("v5e-4", None)]
)
def test_slice_of_a_topology_has_its_sparse_cores(topology, expected):
    assert slice_of(named_topology(topology)) == expected


def test_batch_that_the_sparse_cores_cannot_share_is_refused():
    with pytest.raises(ConfigError, match=r"is 100 with negatives, not a multiple of the 16 .* write 96 or 112"):
        Slice(4, 4).samples_per_core(100)


def test_rows_and_columns_are_padded():
    (stack,) = stack_tables([TableShape("t", rows=65, dim=3, samples=64)], Slice(2, 4))
    assert (stack.dim, stack.rows_per_shard, stack.tables[0].padded_rows) == (8, 16, 128)


@pytest.mark.parametrize(
    ("tables", "choices", "stacks"),
    [
        ({"b": {"dim": 5}, "a": {}, "c": {"dim": 9}}, {}, ["a_b", "c"]),
        ({"a": {"optimizer": SGD(learning_rate=1.0)}, "b": {"optimizer": Adagrad(learning_rate=1.0)}}, {}, ["a", "b"]),
        ({"a": {"combiner": "sum"}, "b": {"combiner": "mean"}}, {}, ["a_b"]),
        ({"a": {"combiner": "sum"}, "b": {"combiner": "mean"}}, {"by_combiner": True}, ["a", "b"]),
    ],
    ids=["padded widths", "optimizers", "combiners", "combiners apart"],
)
def test_tables_of_one_width_and_optimizer_are_stacked_by_name(tables, choices, stacks):
    assert [stack.name for stack in stacks_of(config_of(**tables), Slice(2, 4), 64, **choices)] == stacks


def test_each_table_of_a_stack_is_rotated_by_one_chip_more():
    shapes = [TableShape(name, rows=64, dim=8, samples=64) for name in "abc"]
    (stack,) = stack_tables(shapes, Slice(2, 4))
    assert [(table.first_row, table.rotation) for table in stack.tables] == [(0, 0), (8, 4), (16, 0)]


@pytest.mark.parametrize(("rows", "samples"), [((64, 64), (2**17, 2**17)), ((2**25, 2**25), (64, 64))])
def test_stack_stays_below_2_mib_of_activations_and_2_gib_a_chip(rows, samples):
    sizes = zip("abc", (*rows, 64), (*samples, 64), strict=True)
    shapes = [TableShape(name, count, 16, looked_up) for name, count, looked_up in sizes]
    assert [stack.name for stack in stack_tables(shapes, Slice(2, 4))] == ["a_c", "b"]


_SIZES = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 12)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(_SIZES, st.integers(1, 5), st.sampled_from([2, 4]))
def test_tables_come_back_from_their_shards(sizes, chips, per_chip):
    slice_ = Slice(chips, per_chip)
    shapes = [TableShape(f"t{index}", rows, dim, samples=64) for index, (rows, dim) in enumerate(sizes)]
    values = {shape.name: np.random.default_rng(0).normal(size=(shape.rows, shape.dim)) for shape in shapes}
    dims = {shape.name: shape.dim for shape in shapes}
    for stack in stack_tables(shapes, slice_):
        placed = stack.to_shards(values, slice_.shards)
        for table in stack.tables:
            ids = np.arange(table.rows)
            rows = placed[table.shard_of(ids, slice_.shards), table.row_of(ids, slice_.shards), : dims[table.name]]
            np.testing.assert_array_equal(rows, values.pop(table.name))
    assert not values


@settings(max_examples=40, deadline=None)
@given(_SIZES, st.integers(1, 4))
def test_shards_are_those_of_dealing_padding_and_rolling(sizes, chips):
    slice_ = Slice(chips, 4)
    shapes = [TableShape(f"t{index}", rows, 8, samples=64) for index, (rows, _) in enumerate(sizes)]
    values = {shape.name: np.random.default_rng(1).normal(size=(shape.rows, 8)) for shape in shapes}
    (stack,) = stack_tables(shapes, slice_)
    parts = []
    for index, shape in enumerate(shapes):
        whole = np.zeros((-(-shape.rows // (8 * slice_.shards)) * 8 * slice_.shards, 8))
        whole[: shape.rows] = values[shape.name]
        parts.append(np.roll([whole[shard :: slice_.shards] for shard in range(slice_.shards)], index * 4, axis=0))
    np.testing.assert_array_equal(stack.to_shards(values, slice_.shards), np.concatenate(parts, axis=1))

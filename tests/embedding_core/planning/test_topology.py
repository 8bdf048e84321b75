import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.optimizers import FTRL, SGD, Adagrad, Adam
from embedding_core.planning.topology import GIB, memory_plan, named_topology, row_blocks

pytestmark = pytest.mark.light


def tables(optimizer=None, **sizes):
    """Make tables of rows and dim by name."""
    optimizer = optimizer or Adagrad()
    made = (TableConfig(name=name, vocabulary_size=n, dim=dim, optimizer=optimizer) for name, (n, dim) in sizes.items())
    features = (FeatureConfig(name=name, table=name) for name in sizes)
    return EmbeddingConfig(tables=tuple(made), features=tuple(features))


@pytest.mark.parametrize(
    ("name", "hosts", "cores", "gib"),
    [("v2-8", 1, 8, 8), ("v3-32", 4, 8, 16), ("v4-16", 2, 4, 32), ("v5litepod-8", 1, 8, 16), ("v5e-16", 4, 4, 16)],
)
def test_named_topology_has_hosts_cores_and_memory(name, hosts, cores, gib):
    topology = named_topology(name)
    assert (topology.hosts, topology.cores_per_host, topology.bytes_per_core) == (hosts, cores, gib * GIB)


@pytest.mark.parametrize("name", ["v3-12", "v3-4", "v3-0", "v1-8", "v3", "v5e-3", "v4-4"])
def test_topology_that_does_not_exist_is_refused(name):
    with pytest.raises(ConfigError, match="`topology` is"):
        named_topology(name)


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_row_blocks_share_all_rows_evenly(rows, parts):
    blocks = row_blocks(rows, parts)
    assert sum(blocks) == rows
    assert blocks == sorted(blocks, reverse=True)
    assert blocks[0] - blocks[-1] <= 1


def test_memory_plan_pads_rows_and_counts_slots():
    plan = memory_plan(tables(t=(7, 5)), named_topology("v3-32"))
    assert plan["tables"]["t"]["rows_per_host"] == [2, 2, 2, 1]
    assert plan["tables"]["t"]["fullest_core_bytes"] == 1 * 8 * 4 * 2
    assert plan["host_bytes"] == [128, 128, 128, 64]
    assert plan["fits"]


def test_memory_plan_has_whole_copies_without_embedding_hardware():
    plan = memory_plan(tables(t=(10, 5)), named_topology("v5e-4"))
    assert plan["fullest_core_bytes"] == 10 * 8 * 4 * 2
    assert plan["host_bytes"] == [4 * 640]


def whole(*given, optimizer=None):
    """Plan tables of (rows, dim) on v5e."""
    return memory_plan(tables(optimizer, **{f"t{n}": shape for n, shape in enumerate(given)}), named_topology("v5e-4"))


@pytest.mark.parametrize(
    ("dim", "columns"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (12, 16), (64, 64), (100, 104)]
)
def test_memory_plan_pads_columns_of_copies_as_the_tpu_compiler(dim, columns):
    assert whole((1000, dim))["fullest_core_bytes"] == 1000 * columns * 4 * 2


@pytest.mark.parametrize(("optimizer", "slots"), [(SGD(), 1), (Adagrad(), 1), (Adam(), 2), (FTRL(), 2)])
def test_memory_plan_of_whole_copies_counts_the_slots_of_keras(optimizer, slots):
    assert whole((1000, 8), optimizer=optimizer)["fullest_core_bytes"] == 1000 * 8 * 4 * (1 + slots)


@pytest.mark.parametrize(
    ("given", "optimizer", "floats"),
    [
        ([(1000, 16)], Adagrad(), 16),  # the gradient
        ([(1000, 128), (500, 256)], Adam(), 128),
        ([(1000, 64)], Adam(), 64 + 128),
        ([(1000, 64)], Adagrad(), 64 + 3 * 128),
        ([(1000, 96)], SGD(), 96 + 3 * 128),
        ([(1000, 192)], Adagrad(), 192 + 3 * 256),
        ([(1000, 64), (1000, 64), (1000, 16)], Adagrad(), 64 + 4 * 128),
    ],
)
def test_memory_plan_bounds_gradients_and_padded_copies(given, optimizer, floats):
    assert whole(*given, optimizer=optimizer)["copy_bytes"] == 1000 * floats * 4


def test_memory_plan_fits_only_with_the_copies():
    small, large = whole((6_000_000, 64)), whole((9_600_000, 64))
    assert small["fits"]
    assert not large["fits"]
    assert large["over_budget"] == []


def test_memory_plan_of_shards_has_no_copies():
    assert memory_plan(tables(t=(10, 5)), named_topology("v6e-8"))["copy_bytes"] == 0


def test_memory_plan_over_budget_names_the_largest_tables():
    plan = memory_plan(tables(small=(100, 5), huge=(3 * 10**9, 5), large=(10**9, 5)), named_topology("v2-8"))
    assert not plan["fits"]
    assert plan["over_budget"] == ["huge"]

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError, DataError
from embedding_core.sparse_cores import Ids, LimitCounter, Slice, count_batch, drift_of, limits_in_all_forms, stacks_of

pytestmark = pytest.mark.light

MODEL = EmbeddingConfig(
    tables=(
        TableConfig(name="b", vocabulary_size=50, dim=8, combiner="sum"),
        TableConfig(name="a", vocabulary_size=20, dim=6),
        TableConfig(name="c", vocabulary_size=9, dim=16),
    ),
    features=(
        FeatureConfig(name="one", table="b"),
        FeatureConfig(name="two", table="a"),
        FeatureConfig(name="three", table="b", max_sequence_length=2),
        FeatureConfig(name="four", table="c"),
    ),
)


def ids_of(rows):
    return Ids(np.array([id_ for row in rows for id_ in row], np.int64), np.cumsum([0, *map(len, rows)]))


def batch_of(seed, rows, most=4):
    random = np.random.default_rng(seed)
    return {
        feature.name: [
            list(random.integers(0, MODEL.table(feature.table).vocabulary_size, random.integers(0, most + 1)))
            for _ in range(rows)
        ]
        for feature in MODEL.features
    }


def slow_counts(stack, slice_, batch, batch_size):
    """Count as the definition says, with sets: pairs of (feature, sample, position), and rows, by partition."""
    share = batch_size // slice_.shards
    pairs, rows = {}, {}
    for feature in MODEL.features:
        for table in stack.tables:
            if table.name != feature.table:
                continue
            for sample, ids in enumerate(batch[feature.name]):
                length = feature.max_sequence_length
                for position, id_ in enumerate(ids[:length] if length else ids):
                    key = sample // share, (id_ % slice_.shards + table.rotation) % slice_.shards
                    where = feature.name, sample, position if length else None, id_
                    pairs.setdefault(key, set()).add(where)
                    rows.setdefault(key, set()).add((table.name, id_))
    buffer = [
        sum(-(-len(pair) // 8) * 8 for (core, _), pair in pairs.items() if core == n) for n in range(slice_.shards)
    ]
    return pairs, rows, buffer


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(1, 2), (2, 4), (3, 2)]), st.integers(1, 3), st.integers(0, 20))
def test_counts_are_those_of_the_definition(seed, shape, samples, missing):
    slice_ = Slice(*shape)
    size = samples * slice_.shards
    batch = batch_of(seed, max(0, size - missing))
    for stack in stacks_of(MODEL, slice_, size):
        given_ids = {name: ids_of(rows) for name, rows in batch.items()}
        count = count_batch(stack, MODEL, slice_, given_ids, samples)
        pairs, rows, buffer = slow_counts(stack, slice_, batch, size)
        for core in range(slice_.shards):
            for shard in range(slice_.shards):
                assert count.ids[core, shard] == len(pairs.get((core, shard), ()))
                assert count.unique_ids[core, shard] == len(rows.get((core, shard), ()))
        assert list(count.buffer) == buffer


def _counter(batches, size=16):
    slice_ = Slice(1, 2)
    counter = LimitCounter(MODEL, slice_, size, stacks_of(MODEL, slice_, size))
    for seed in range(batches):
        counter.add({name: ids_of(rows) for name, rows in batch_of(seed, size).items()})
    return counter


def test_limits_are_the_largest_counts_of_all_batches():
    of_each, first = _counter(3).limits(), _counter(1).limits()
    assert [limits.stack for limits in of_each] == ["a_b", "c"]
    for now, before in zip(of_each, first, strict=True):
        assert now.max_ids_per_partition >= before.max_ids_per_partition
        assert now.max_unique_ids_per_partition <= now.max_ids_per_partition
        assert now.buffer_per_core % 8 == 0
        assert now.buffer_per_chip == 2 * now.buffer_per_core
        assert now.buffer_bytes_per_chip == 12 * now.buffer_per_chip
        assert now.minibatches == 1


def test_stack_without_ids_has_limits_of_one():
    counter = LimitCounter(MODEL, Slice(1, 2), 4, stacks_of(MODEL, Slice(1, 2), 4))
    counter.add({feature.name: ids_of([[]] * 4) for feature in MODEL.features})
    assert {(limits.max_ids_per_partition, limits.buffer_per_core) for limits in counter.limits()} == {(1, 8)}


def test_id_outside_its_table_is_named():
    counter = LimitCounter(MODEL, Slice(1, 2), 4, stacks_of(MODEL, Slice(1, 2), 4))
    batch = {feature.name: ids_of([[0]] * 4) for feature in MODEL.features}
    with pytest.raises(DataError, match="feature 'two' has id 20 for table 'a': ids must be from 0 to 19"):
        counter.add({**batch, "two": ids_of([[20], [0], [0], [0]])})


def test_bound_covers_later_batches():
    counter, later = _counter(40), _counter(300)
    for bound, seen in zip(counter.bounds(300, 0.99), later.limits(), strict=True):
        assert seen.max_ids_per_partition <= bound.max_ids_per_partition <= 2 * seen.max_ids_per_partition
        assert seen.max_unique_ids_per_partition <= bound.max_unique_ids_per_partition
        assert seen.buffer_per_core <= bound.buffer_per_core


def test_bound_grows_with_batches_and_confidence():
    counter = _counter(30)
    small, more, surer = (
        counter.bounds(*given)[0].max_ids_per_partition for given in [(30, 0.9), (10**4, 0.9), (10**4, 0.999)]
    )
    assert small < more < surer


def test_bound_from_too_few_batches_is_refused():
    with pytest.raises(ConfigError, match="29 batches were counted: a bound needs at least 30"):
        _counter(29).bounds(100, 0.99)


def test_drift_names_what_changed_and_the_batches_over():
    counter = _counter(3)
    (stack, *_), now = counter.stacks, counter.limits()
    before = now[0].to_mapping() | {"max_ids_per_partition": now[0].max_ids_per_partition // 2}
    drift = drift_of(now, [before], counter)
    change = now[0].max_ids_per_partition / before["max_ids_per_partition"] - 1
    assert math.isclose(drift[stack.name]["change"]["max_ids_per_partition"], change, abs_tol=1e-4)
    assert drift[stack.name]["batches_over"] == 3
    assert drift["c"] is None


def test_forms_name_stacks_and_tables():
    counter = _counter(2)
    apart = LimitCounter(MODEL, Slice(1, 2), 16, stacks_of(MODEL, Slice(1, 2), 16, by_combiner=True))
    apart.add({name: ids_of(rows) for name, rows in batch_of(0, 16).items()})
    forms = limits_in_all_forms(counter.limits(), apart.limits())
    assert list(forms["tensorflow"]["max_ids_per_table"]) == ["a_b", "c"]
    assert forms["keras_rs"]["table_stacking"] is None  # a and b have other combiners
    assert set(forms["keras_rs"]["tables"]) == {"a", "b", "c"}
    processing = forms["jax_tpu_embedding"]
    assert processing["stack_tables"] == []
    assert list(processing["update_preprocessing_parameters"]["max_ids_per_partition"]) == ["a", "b", "c"]


def test_buffer_of_tensorflow_covers_every_stack():
    limits = _counter(3).limits()
    per_sample = limits_in_all_forms(limits, limits)["tensorflow"]["max_ids_per_chip_per_sample"]
    assert all(per_sample * limit.samples_per_chip >= limit.buffer_per_chip for limit in limits)

import json

import pytest
import tensorflow as tf
import tf_keras

from embedding_core.engines import simulated_tpu
from embedding_core.errors import ConfigError
from embedding_core.placement import placement_of

IDS = tf.constant([0, 3])


@pytest.fixture
def table():
    with tf.device("/CPU:1"):
        return tf.Variable(tf.ones([5, 2]))


def silent(found):
    return [finding.kind for finding in found.silent]


def test_lookup_is_reported_where_its_table_is_not_as_requested(table):
    @tf.function
    def look_up(ids):
        with tf.device("/CPU:2"):
            return tf.nn.embedding_lookup(table, ids)

    found = placement_of(look_up, IDS, tables={"items": table})
    assert [(lookup.table, lookup.device[-5:], lookup.compiled) for lookup in found.lookups] == [
        ("items", "CPU:1", False)
    ]
    assert found.tables[0].devices[0].endswith("CPU:1")
    assert found.tables[0].bytes == 40
    assert silent(found) == []


def test_lookups_inside_called_functions_are_found(table):
    inner = tf.function(lambda ids: tf.gather(table, ids))
    outer = tf.function(lambda ids: tf.cond(tf.reduce_any(ids > 2), lambda: inner(ids), lambda: inner(ids + 1)))
    found = placement_of(outer, IDS, tables={"items": table})
    assert [lookup.table for lookup in found.lookups] == ["items", "items"]


def test_sums_of_rows_are_lookups(table):
    total = tf.function(lambda ids: tf.sparse.segment_sum(tf.convert_to_tensor(table), ids, [0, 0], num_segments=2))
    found = placement_of(total, IDS, tables={"items": table})
    assert [lookup.table for lookup in found.lookups] == ["items"]


def test_value_of_a_table_is_copied_to_another_device(table):
    def look_up(ids):
        with tf.device("/CPU:2"):
            return tf.gather(tf.convert_to_tensor(table), ids)

    found = placement_of(look_up, IDS, tables={"items": table})
    assert silent(found) == ["whole table"]
    assert "40 bytes" in found.silent[0].rule


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="the GPU is there")
def test_soft_placement_is_told():
    with tf.device("/GPU:0"):
        table = tf.Variable(tf.ones([5, 2]))
    found = placement_of(tf.nn.embedding_lookup, table, IDS, tables={"items": table}, expect="GPU")
    assert silent(found) == ["device"]
    assert "finds no GPU" in found.for_gpu["items"][0]
    assert placement_of(tf.abs, IDS, tables={"items": table}, expect="CPU:0").silent == []


def test_ids_that_xla_clamps_are_told():
    table = tf.Variable(tf.reshape(tf.range(10.0), [5, 2]))
    compiled = tf.function(lambda ids: tf.nn.embedding_lookup(table, ids), jit_compile=True)
    assert compiled(tf.constant([-1, 7])).numpy().tolist() == [[0.0, 1.0], [8.0, 9.0]]
    found = placement_of(compiled, IDS, tables={"items": table})
    assert silent(found) == ["clamped ids"]
    assert found.lookups[0].compiled


def test_float_ids_are_told():
    layer = tf_keras.layers.Embedding(5, 2)
    assert layer(tf.constant([1.7])).numpy().tolist() == layer(tf.constant([1])).numpy().tolist()
    assert silent(placement_of(layer, tf.constant([1.7]), tables={"items": layer.embeddings})) == ["float ids"]
    assert silent(placement_of(layer, tf.constant([1]), tables={"items": layer.embeddings})) == []


def test_table_without_gradient_is_told():
    table = tf.Variable(tf.ones([5, 2], tf.int32))
    with tf.GradientTape() as tape:
        rows = tf.nn.embedding_lookup(table, IDS)
    assert tape.gradient(rows, table) is None
    assert silent(placement_of(tf.nn.embedding_lookup, table, IDS, tables={"items": table})) == ["no gradient"]


def test_mirrored_copies_are_told():
    strategy = simulated_tpu(hosts=1, cores_per_host=2)
    with strategy.scope():
        table = tf.Variable(tf.ones([5, 2]))

    def step(ids):
        return strategy.run(lambda: tf.nn.embedding_lookup(table, ids))

    found = placement_of(step, IDS, tables={"items": table})
    assert silent(found) == ["copies"]
    assert sorted(lookup.device[-5:] for lookup in found.lookups) == ["CPU:1", "CPU:2"]


def test_report_is_json(table):
    found = placement_of(tf.nn.embedding_lookup, table, IDS, tables={"items": table})
    assert json.loads(json.dumps(found.to_json()))["tables"][0]["shape"] == [5, 2]


def test_what_is_no_variable_is_refused():
    with pytest.raises(ConfigError, match="must be a tf"):
        placement_of(tf.abs, IDS, tables={"items": tf.ones([5, 2])})

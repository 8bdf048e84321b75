"""Global batches are split across replicas: the same rows in the same order on every topology."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.training.row_stream import padded, replica_batches
from embedding_core.training.training_inputs import Batch


def _batch(rows: int) -> Batch:
    return Batch(
        ids={"item": tf.RaggedTensor.from_row_lengths(tf.range(rows * 2, dtype=tf.int64), tf.fill([rows], 2))},
        dense={"age": tf.range(rows, dtype=tf.float32)[:, None]},
        label=tf.ones([rows, 1]),
        weight=tf.fill([rows, 1], 2.0),
        rows=tf.convert_to_tensor(rows),
    )


def _contexts(hosts: int, replicas: int) -> list[tf.distribute.InputContext]:
    return [tf.distribute.InputContext(hosts, host, replicas) for host in range(hosts)]


def test_padded_adds_rows_without_ids_and_weight():
    batch = padded(_batch(3), 5)
    assert batch["ids"]["item"].to_list() == [[0, 1], [2, 3], [4, 5], [], []]
    np.testing.assert_array_equal(batch["weight"], [[2], [2], [2], [0], [0]])
    assert batch["rows"].numpy() == 3


def test_padded_says_its_size_statically():
    graph = tf.function(lambda rows: padded(_batch(rows), 4)).get_concrete_function(tf.TensorSpec([], tf.int32))
    assert graph.structured_outputs["ids"]["item"].shape.as_list() == [4, None]
    assert graph.structured_outputs["label"].shape.as_list() == [4, 1]


@pytest.mark.parametrize(("hosts", "replicas"), [(1, 1), (3, 6)])
def test_replica_batches_are_the_global_batch_in_order(hosts, replicas):
    batches = tf.data.Dataset.range(2, 4, output_type=tf.int32).map(lambda less: _batch(7 - less))
    parts = [list(replica_batches(batches, 12, context)) for context in _contexts(hosts, replicas)]
    for step, rows in enumerate((5, 4)):
        own = [part for host in parts for part in host[step * replicas // hosts : (step + 1) * replicas // hosts]]
        ids = [row for part in own for row in part["ids"]["item"].to_list()]
        assert ids == _batch(rows)["ids"]["item"].to_list() + [[]] * (12 - rows)
        ages = np.concatenate([part["dense"]["age"] for part in own])[:rows, 0]
        assert ages.tolist() == list(range(rows))
        assert {int(part["rows"]) for part in own} == {rows}

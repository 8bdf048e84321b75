import itertools

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.parameter_server.server_steps import STEPS_PER_BLOCK, BlockPlan, piece_batches

ROWS = {"a": 25, "b": 7, "c": 0, "d": 1050}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, made, start = tmp_path_factory.mktemp("files"), {}, 0
    for name, count in ROWS.items():
        made[str(folder / name)] = count
        with tf.io.TFRecordWriter(str(folder / name)) as writer:
            for number in range(start, start + count):
                writer.write(str(number).encode())
        start += count
    return made


def plan_of(files, *, batch_size=10, seed=3, buffer=1000):
    return BlockPlan(list(files), list(files.values()), batch_size, seed=seed, buffer=buffer)


def batches_of(pieces):
    """Return the rows of each step, by its number."""
    found = {}
    for piece in pieces:
        for step, rows in piece_batches(piece.tensors(), "", None, batch_size=10, seed=3):
            found[int(step)] = [int(row) for row in rows.numpy()]
    return found


def test_an_epoch_has_each_row_once(files):
    plan = plan_of(files)
    assert (plan.rows, plan.steps) == (1082, 3 + 1 + 105)
    for epoch in range(2):
        batches = batches_of(plan.shuffled(epoch * plan.steps, plan.steps, 1000))
        assert sorted(batches) == list(range(epoch * plan.steps, (epoch + 1) * plan.steps))
        assert sorted(itertools.chain(*batches.values())) == list(range(plan.rows))


def test_a_step_has_the_same_rows_however_the_steps_are_cut(files):
    whole = batches_of(plan_of(files).shuffled(0, 150, 1000))
    cut = {}
    for start in range(0, 150, 50):
        cut |= batches_of(plan_of(files).shuffled(start, 50, 23))
    assert whole == cut


def test_epochs_and_seeds_have_other_orders(files):
    plan = plan_of(files)
    first, second = (list(batches_of(plan.shuffled(start, 20, 1000)).values()) for start in (0, plan.steps))
    other = list(batches_of(plan_of(files, seed=4).shuffled(0, 20, 1000)).values())
    assert first != second
    assert first != other


def test_blocks_are_no_larger_than_the_buffer(files):
    for buffer, longest in ((1000, STEPS_PER_BLOCK), (45, 4), (3, 1)):
        assert max(piece.steps for piece in plan_of(files, buffer=buffer).in_order()) == longest


def test_rows_to_evaluate_are_in_order(files):
    batches = batches_of(plan_of(files).in_order())
    assert list(itertools.chain(*batches.values())) == list(range(1082))
    assert np.all([len(rows) <= 10 for rows in batches.values()])

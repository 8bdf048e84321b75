"""Tests the figures that come from samples of rows against slow computations."""

import numpy as np
import pytest

from embedding_core.health import measure_table
from embedding_core.health.neighbours import changed_neighbours, hubness
from tests.embedding_core.health.test_row_figures import Table

pytestmark = pytest.mark.light

ROWS = np.random.default_rng(3).normal(size=(300, 8)).astype(np.float32)
COUNTS = np.ones(300, np.int64)


def measured(rows, before, sources=None):
    return measure_table(Table(rows, before, slots=None, slots_before=None, sources=sources, counts=COUNTS)).values


def neighbours(rows):
    """Return the ten nearest other rows of each by cosine, found by sorting."""
    unit = rows / np.linalg.norm(rows, axis=1)[:, None]
    return [
        set(sorted(set(range(len(rows))) - {row}, key=lambda other: -unit[row] @ unit[other])[:10])
        for row in range(len(rows))
    ]


def test_churn_and_hubness_are_those_of_all_rows_of_a_small_table():
    rows = ROWS + np.random.default_rng(4).normal(size=ROWS.shape).astype(np.float32) * 0.3
    values = measured(rows, ROWS)
    before, now = neighbours(ROWS), neighbours(rows)
    lost = np.mean([len(old - new) / 10 for old, new in zip(before, now, strict=True)])
    assert values["churn"] == pytest.approx(lost)
    times = np.bincount([other for one in now for other in one], minlength=300)
    skewness = ((times - times.mean()) ** 3).mean() / times.std() ** 3
    assert values["hubness"] == pytest.approx(skewness)


def test_equal_rows_have_no_churn_and_are_not_misplaced():
    values = measured(ROWS, ROWS)
    assert values["churn"] == values["misplaced"] == 0.0


def test_shifted_rows_are_misplaced():
    near = np.roll(ROWS, 1, axis=0) + np.float32(0.01)
    assert measured(near, ROWS)["misplaced"] == 1.0


def test_rows_that_only_moved_are_not_misplaced():
    assert measured(ROWS * np.float32(1.3), ROWS)["misplaced"] < 0.05


def test_dense_rows_that_moved_far_are_not_misplaced():
    """In 4 columns, a row that moves by half of its norm often comes close to another one."""
    chance = np.random.default_rng(2)
    before, moves = chance.normal(size=(2, 3000, 4)).astype(np.float32)
    assert measured(before + moves / 2, before)["misplaced"] < 0.25
    assert measured(np.roll(before, 1, axis=0) + moves / 50, before)["misplaced"] > 0.75


def test_rows_in_another_order_are_compared_by_token():
    order = np.random.default_rng(0).permutation(300)
    values = measured(ROWS[order] + np.float32(0.01), ROWS, sources=order)
    assert values["misplaced"] == 0.0
    assert values["churn"] < 0.2


def test_one_hub():
    """Every row has row 0 among its neighbours, the other neighbours are spread evenly."""
    nearest = np.array([[0, (row + 1) % 50, (row + 2) % 50] for row in range(1, 50)])
    assert hubness(nearest) > 5
    assert hubness(np.array([[1], [0]])) == 0.0
    assert changed_neighbours(np.array([[1, 2], [3, 4]]), np.array([[2, 1], [5, 4]])).tolist() == [0.0, 0.5]

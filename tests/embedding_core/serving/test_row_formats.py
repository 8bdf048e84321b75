"""Rows stored as float16 or int8 are within the stated bound of float32, and TensorFlow reads them as NumPy does."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embedding_core.serving.lookups import decoded, encoded, rounded
from embedding_core.serving_config import row_width

LARGEST = float(np.float32(3e38))
FLOATS = st.floats(width=32, min_value=-LARGEST, max_value=LARGEST)
ROWS = arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=FLOATS)


def bound(rows):
    wide = rows.astype(np.float64)
    scale = (wide.max(1) - wide.min(1)) / 254
    return scale / 2 + np.abs(wide).max(1) * 2.0**-22 + 2.0**-118


def served(rows):
    return decoded(tf.constant(encoded(rows, "int8"))).numpy()


@settings(deadline=None)  # a busy machine is no fault
@given(rows=ROWS)
@example(rows=np.array([[1e6, 1e6 + 1, 1e6 + 2]], np.float32))
@example(rows=np.array([[-LARGEST, LARGEST]], np.float32))
@example(rows=np.array([[1.2e-38, -1.2e-38], [1e-40, 3e-45], [1e-36, 0]], np.float32))
def test_int8_rows_are_within_the_bound(rows):
    found = served(rows)
    assert (np.abs(found.astype(np.float64) - rows).max(1) <= bound(rows)).all()
    np.testing.assert_allclose(found, rounded(rows, "int8"), rtol=2e-7, atol=1e-37)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.25, 1e-37, -3.4028235e38, 0.1])
@pytest.mark.parametrize("dim", [1, 5])
def test_rows_of_equal_values_are_exact(value, dim):
    rows = np.full((2, dim), value, np.float32)
    np.testing.assert_array_equal(served(rows), rows)


def test_largest_and_smallest_values_of_a_row_are_kept():
    rows = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
    for reduce in (np.min, np.max):
        np.testing.assert_allclose(reduce(served(rows), 1), reduce(rows, 1), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_do_not_become_finite(bad):
    rows = np.array([[1, bad, 2], [1, 2, 3]], np.float32)
    assert np.isfinite(rounded(rows, "int8")).all(1).tolist() == [False, True]


def test_a_row_of_zero_bytes_is_zeros():
    assert not decoded(tf.zeros([2, 12], tf.int8)).numpy().any()


@pytest.mark.parametrize(("dtype", "numbers"), [("float32", 6), ("float16", 6), ("int8", 14)])
def test_width_is_that_of_stored_rows(dtype, numbers):
    stored = encoded(np.ones((2, 6), np.float32), dtype)
    assert (stored.shape, stored.dtype, row_width(6, dtype)) == ((2, numbers), dtype, numbers)


def test_decoded_keeps_the_leading_dimensions():
    rows = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    stored = tf.reshape(tf.constant(encoded(rows.reshape(6, 4), "int8")), [2, 3, 12])
    np.testing.assert_allclose(decoded(stored), rows, atol=0.03)

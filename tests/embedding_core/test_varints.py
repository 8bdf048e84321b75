"""Varints have the bytes of Protocol Buffers."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.varints import from_varints, varints


def test_bytes_are_those_of_protocol_buffers():
    draw = np.random.default_rng(5)
    numbers = np.concatenate([[0, 1, 127, 128, 2**32, 2**63 - 1], draw.integers(0, 2 ** draw.integers(1, 63, 500))])
    content, sizes = varints(numbers.astype(np.uint64))
    expected = tf.train.Int64List(value=numbers).SerializeToString()
    assert expected.endswith(content.tobytes())
    assert len(expected) - len(content) <= 4
    assert sizes.sum() == len(content)
    np.testing.assert_array_equal(from_varints(content.tobytes()), numbers.astype(np.uint64))


def test_negative_numbers_have_ten_bytes():
    content, sizes = varints(np.array([-1, -(2**63)]).view(np.uint64))
    assert sizes.tolist() == [10, 10]
    assert from_varints(content.tobytes()).view(np.int64).tolist() == [-1, -(2**63)]


@pytest.mark.parametrize("wrong", [b"\x80", b"\x01\x80", b"\x80" * 10 + b"\x01", b"\x80" * 9 + b"\x02"])
def test_other_bytes_are_refused(wrong):
    with pytest.raises(ValueError, match="not varints"):
        from_varints(wrong)


def test_nothing_is_no_bytes():
    assert len(varints(np.zeros(0, np.uint64))[0]) == 0
    assert len(from_varints(b"")) == 0

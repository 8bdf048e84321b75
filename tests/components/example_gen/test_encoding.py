"""The columnar encoder of tf.Examples against TensorFlow's messages, which are made value by value."""

import numpy as np
import pyarrow as pa
import pytest

from components.example_gen.rows import examples

COLUMNS = {
    "é": pa.array([None, b"", b"\xff\x00", b"x" * 200, b"y" * 70_000], pa.large_binary()),
    "int": pa.array([0, -1, 2**63 - 1, None, -(2**63)], pa.int64()),
    "small int": pa.array([127, 128, None, 16_383, 16_384], pa.int64()),
    "float": pa.array([0.0, None, -0.0, 1e38, np.inf], pa.float32()),
    "string": pa.array(["a", None, "ü", "", "z" * 127], pa.string()),
    "ints": pa.array([[1, 2, 300, -5], [], None, [0], [2**40] * 30], pa.large_list(pa.int64())),
    "floats": pa.array([[1.5], [], None, [0.0, 2], [3] * 50], pa.large_list(pa.float32())),
    "texts": pa.array([[b"a", b""], [], None, [b"x" * 300], [b"q"] * 130], pa.large_list(pa.large_binary())),
    "strings": pa.array([["a", ""], [], None, ["x" * 300], ["q"] * 130], pa.list_(pa.string())),
    "nothing": pa.nulls(5, pa.large_binary()),
    "k" * 200: pa.array([b"long name"] * 5, pa.large_binary()),
}
KINDS = {int: "int64_list", float: "float_list", bytes: "bytes_list"}


def serialized(columns):
    """Serialize row by row, value by value, with the features in the order of their names.

    TensorFlow serializes each feature alone, because the order of a map's keys differs between releases of protobuf.
    """
    import tensorflow as tf

    rows = []
    for index in range(len(next(iter(columns.values())))):
        features = []
        for name in sorted(columns):
            value = columns[name][index].as_py()
            values = value if isinstance(value, list) else [] if value is None else [value]
            values = [text.encode() if isinstance(text, str) else text for text in values]
            if values:
                message = tf.train.Features()
                getattr(message.feature[name], KINDS[type(values[0])]).value.extend(values)
                features.append(message.SerializeToString())
        # An Example has one field of bytes, `features`, with the number of BytesList's only field.
        rows.append(tf.train.BytesList(value=[b"".join(features)]).SerializeToString())
    return rows


@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_alone_is_serialized_as_by_tensorflow(name):
    assert examples({name: COLUMNS[name]}) == serialized({name: COLUMNS[name]})


@pytest.mark.parametrize("rows", [slice(0, 5), slice(1, 4), slice(2, 3), slice(0, 0)])
def test_slices_of_columns_are_serialized_as_by_tensorflow(rows):
    columns = {name: column[rows] for name, column in COLUMNS.items()}
    assert examples(columns) == serialized(columns)


def test_random_columns_are_serialized_as_by_tensorflow():
    generator = np.random.default_rng(3)
    for rows in (1, 7, 300):
        numbers = generator.integers(-(2**62), 2**62, rows) >> generator.integers(0, 62, rows)
        missing = generator.random(rows) < 0.3
        texts = [generator.bytes(int(size)) for size in generator.integers(0, 140, rows)]
        ends = np.concatenate([[0], np.cumsum(generator.integers(0, 4, rows))])
        values = pa.array([b"%d" % number for number in range(ends[-1])], pa.large_binary())
        columns = {
            "n": pa.array(numbers, mask=missing),
            "t": pa.array(texts, pa.large_binary()),
            "m": pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values),
        }
        assert examples(columns) == serialized(columns)

"""The columnar encoder of tf.Examples against a slow one that encodes value by value."""

import numpy as np
import pyarrow as pa
import pytest

from components.example_gen.encoding import examples

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


def varint(value):
    out, rest = bytearray(), value & (2**64 - 1)
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def field(tag, payload):
    return tag + varint(len(payload)) + payload


def feature(values):
    if isinstance(values[0], int):
        return field(b"\x1a", field(b"\x0a", b"".join(map(varint, values))))
    if isinstance(values[0], float):
        return field(b"\x12", field(b"\x0a", np.array(values, "<f4").tobytes()))
    texts = [value.encode() if isinstance(value, str) else value for value in values]
    return field(b"\x0a", b"".join(field(b"\x0a", text) for text in texts))


def slowly(columns):
    """Encode row by row, value by value."""
    rows = []
    for index in range(len(next(iter(columns.values())))):
        entries = b""
        for name in sorted(columns):
            value = columns[name][index].as_py()
            values = value if isinstance(value, list) else [] if value is None else [value]
            if values:
                key = field(b"\x0a", name.encode())
                entries += field(b"\x0a", key + field(b"\x12", feature(values)))
        rows.append(field(b"\x0a", entries))
    return rows


@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_alone_has_the_bytes_of_the_slow_encoder(name):
    assert examples({name: COLUMNS[name]}) == slowly({name: COLUMNS[name]})


@pytest.mark.parametrize("rows", [slice(0, 5), slice(1, 4), slice(2, 3), slice(0, 0)])
def test_slices_of_columns_have_the_bytes_of_the_slow_encoder(rows):
    columns = {name: column[rows] for name, column in COLUMNS.items()}
    assert examples(columns) == slowly(columns)


def test_random_columns_have_the_bytes_of_the_slow_encoder():
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
        assert examples(columns) == slowly(columns)


def test_tensorflow_reads_the_bytes():
    import tensorflow as tf

    for row, data in enumerate(examples(COLUMNS)):
        read = tf.train.Example.FromString(data).features.feature
        assert {*read} == {name for name, column in COLUMNS.items() if column[row].as_py() not in (None, [])}
        assert list(read["ints"].int64_list.value) == (COLUMNS["ints"][row].as_py() or [])

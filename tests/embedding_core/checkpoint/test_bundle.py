from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.checkpoint.bundle import BundleReader, BundleWriter, rows_per_slice
from embedding_core.errors import CheckpointError


def rows(count: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def write(prefix, tables, slice_bytes: int) -> str:
    writer = BundleWriter(str(prefix), slice_bytes)
    for key, table in tables.items():
        step = rows_per_slice(table.shape, slice_bytes)
        for start in range(0, len(table), step):
            writer.add(key, table.shape, start, table[start : start + step])
    writer.close()
    return str(prefix)


def read(reader: BundleReader, key: str, slice_bytes: int) -> np.ndarray:
    table = np.full(reader.entries[key].shape, np.nan, np.float32)
    for start, part in reader.slices(key, slice_bytes):
        table[start : start + len(part)] = part
    return table


def test_sliced_bundle_is_read_whole_by_plain_tensorflow(tmp_path):
    tables = {"t": rows(101, 8), "t/momenta": rows(101, 8, 1), "a.b": rows(3, 5)}
    prefix = write(tmp_path / "tables", tables, 1000)
    assert all(path.name.startswith("tables.") and path.is_file() for path in tmp_path.iterdir())  # no parts
    reader = tf.train.load_checkpoint(prefix)
    assert set(reader.get_variable_to_shape_map()) == set(tables)
    for key, table in tables.items():
        np.testing.assert_array_equal(reader.get_tensor(key), table)


@pytest.mark.parametrize("slice_bytes", [1, 100, 10**6])
def test_sliced_bundle_is_read_back_in_any_slices(tmp_path, slice_bytes):
    table = rows(37, 4)
    reader = BundleReader(write(tmp_path / "tables", {"t": table}, 128))
    assert len(reader.entries["t"].parts) == 5
    np.testing.assert_array_equal(read(reader, "t", slice_bytes), table)


@pytest.mark.parametrize(("columns", "parts"), [([(0, 4)], 2), ([(0, 1), (1, 3)], 0)])
def test_slices_of_several_hosts_are_read_from_their_files(tmp_path, columns, parts):
    """Whole rows are read part by part, in the order of the rows; TensorFlow assembles slices of columns."""
    table, prefixes = rows(300, 4), []
    for first, count in ((260, 40), (0, 260)):  # numbers that the index encodes in one byte and in two
        prefixes.append(str(tmp_path / f"part-{first}"))
        specs = [f"300 4 {first},{count}:{left},{width}" for left, width in columns]
        tensors = [tf.constant(table[first : first + count, left : left + width]) for left, width in columns]
        tf.raw_ops.SaveV2(
            prefix=prefixes[-1], tensor_names=["t"] * len(columns), shape_and_slices=specs, tensors=tensors
        )
    prefix = str(tmp_path / "ckpt")
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=prefix, delete_old_dirs=False)
    reader = BundleReader(prefix)
    assert len(reader.entries["t"].parts) == parts
    found = list(reader.slices("t", 7 * 16))
    assert [start for start, _ in found] == list(range(0, 300, 7))
    np.testing.assert_array_equal(np.concatenate([part for _, part in found]), table)


@pytest.fixture
def whole(tmp_path):
    """A checkpoint of tf.train.Checkpoint, whose tensors are not sliced."""
    table = rows(400, 8)
    names = {f"table_{i}": tf.Variable(rows(9, 2, i)) for i in range(60)}
    return tf.train.Checkpoint(t=tf.Variable(table), step=tf.Variable(7, dtype=tf.int64), **names).write(
        str(tmp_path / "ckpt")
    ), table


def test_whole_tensor_is_read_in_slices(whole):
    prefix, table = whole
    reader = BundleReader(prefix)
    np.testing.assert_array_equal(read(reader, "t/.ATTRIBUTES/VARIABLE_VALUE", 1000), table)
    np.testing.assert_array_equal(read(reader, "table_33/.ATTRIBUTES/VARIABLE_VALUE", 1000), rows(9, 2, 33))
    assert int(reader.tensor("step/.ATTRIBUTES/VARIABLE_VALUE")) == 7


def test_index_agrees_with_tensorflow_reader(whole):
    prefix, _ = whole
    entries = BundleReader(prefix).entries
    told = tf.train.load_checkpoint(prefix)
    shapes = told.get_variable_to_shape_map()
    assert {key: list(entry.shape) for key, entry in entries.items()} == shapes
    assert {key: entry.dtype for key, entry in entries.items()} == told.get_variable_to_dtype_map()


def test_every_flipped_bit_of_the_index_is_refused_or_harmless(whole):
    prefix, _ = whole
    path, good = f"{prefix}.index", BundleReader(prefix)
    data = bytearray(tf.io.gfile.GFile(path, "rb").read())
    random = np.random.default_rng(3)
    for at in random.integers(len(data), size=200):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(random.integers(8))
        with open(path, "wb") as file:
            file.write(damaged)
        try:
            assert BundleReader(prefix).entries == good.entries
        except CheckpointError:
            continue


@pytest.mark.parametrize(("how", "message"), [("flip", "does not have the checksum"), ("cut", "too short")])
def test_damaged_data_is_refused(whole, how, message):
    reader, path = BundleReader(whole[0]), Path(f"{whole[0]}.data-00000-of-00001")
    data = bytearray(path.read_bytes())
    data[reader.entries["t/.ATTRIBUTES/VARIABLE_VALUE"].parts[0].offset + 12345] ^= 4
    path.write_bytes(data if how == "flip" else data[:5000])
    with pytest.raises(CheckpointError, match=message):
        read(reader, "t/.ATTRIBUTES/VARIABLE_VALUE", 1000)


def test_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        BundleReader(str(tmp_path / "none"))

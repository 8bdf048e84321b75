"""Tests that records are written as TensorFlow writes them."""

import gzip

import pytest
import tensorflow as tf

from components import artifact_files

pytestmark = pytest.mark.tfx


def test_records_are_those_of_tensorflows_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_files, "_AT_ONCE", 3)
    records = [b"", b"a" * 300, *(b"%d" % number for number in range(5))]
    artifact_files.write_records(str(tmp_path / "ours.gz"), records)
    with tf.io.TFRecordWriter(str(tmp_path / "plain")) as writer:
        for record in records:
            writer.write(record)
    assert gzip.decompress((tmp_path / "ours.gz").read_bytes()) == (tmp_path / "plain").read_bytes()

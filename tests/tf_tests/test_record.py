"""Compares the counts that docs/simulated_tpu.md gives with the last run of TensorFlow's tests."""

import json

import pytest

from embedding_core.rooms import ROOMS, is_installed
from tests.tf_tests import record

pytestmark = pytest.mark.light


def test_counts_of_the_docs_are_those_of_the_last_run():
    page = record.PAGE.read_text(encoding="utf-8")
    assert record.table() in page, "run the campaign `tf-tests`, which writes them"
    assert record.table_of_sparse_cores() in page, "run the campaign `tf-tests`, which writes them"


@pytest.mark.skipif(not all(map(is_installed, ROOMS)), reason="an optional room is not installed")
@pytest.mark.skipif(not record.is_of_this_python(), reason="another version of Python wrote the record")
def test_last_run_was_of_these_engines():
    """A change of the engines may change how many of TensorFlow's tests pass."""
    recorded = json.loads(record.RECORD.read_text(encoding="utf-8"))["engines"]
    assert recorded == record.engines_digest(), "run `make campaign NAME=tf-tests TF_TESTS=<checkout of TensorFlow>`"


def test_comments_and_docstrings_are_not_code(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "ROOT", tmp_path)
    sources = ['"""One."""\ndef f():\n    """Two."""\n    return 1\n', "def f():\n    return 1  # three\n"]
    sources += [text.replace("1", "2") for text in sources]
    codes = []
    for source in sources:
        (tmp_path / "module.py").write_text(source)
        codes.append(record._code_of("module"))
    assert codes[0] == codes[1] != codes[2] == codes[3]

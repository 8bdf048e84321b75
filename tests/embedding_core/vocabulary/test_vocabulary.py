from __future__ import annotations

import contextlib
import json
import os

import numpy as np
import pyarrow as pa
import pytest

from embedding_core.config import ColumnConfig
from embedding_core.errors import ConfigError, VocabularyError
from embedding_core.vocabulary import (
    FeatureSummary,
    evolved_vocabulary,
    length_percentiles,
    load_vocabularies,
    load_vocabulary,
    save_set,
    save_vocabulary,
    vocabulary_from_counts,
)

pytestmark = pytest.mark.light


def vocabulary(counts, name="user", **thresholds):
    tokens = pa.array(list(counts), pa.large_binary())
    return vocabulary_from_counts(name, tokens, np.array(list(counts.values()), np.int64), **thresholds)


def test_order_is_count_descending_then_bytes():
    found = vocabulary({b"b": 2, b"a": 2, b"z": 9, b"\xff": 2, "é".encode(): 2, b"B": 2})
    assert found.tokens.to_pylist() == [b"z", b"B", b"a", b"b", "é".encode(), b"\xff"]
    assert found.counts.tolist() == [9, 2, 2, 2, 2, 2]


def test_thresholds_keep_the_most_frequent():
    found = vocabulary({b"a": 5, b"b": 3, b"c": 3, b"d": 1}, min_count=2, max_size=2)
    assert found.tokens.to_pylist() == [b"a", b"b"]
    assert (found.total_count, found.distinct, found.coverage) == (12, 4, 8 / 12)


def test_thresholds_that_leave_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"`min_count` 6.*occurs 5 times"):
        vocabulary({b"a": 5}, min_count=6)


def test_unrepresentable_tokens_are_counted_apart():
    found = vocabulary({b"a": 5, b"b\nc": 3, b"d\r": 2, b"\0": 1, b" ": 1})
    assert found.tokens.to_pylist() == [b"a", b" "]
    assert (found.unrepresentable, found.total_count, found.distinct) == (6, 12, 2)


def test_save_and_load_are_inverse(tmp_path):
    summary = FeatureSummary(column=ColumnConfig(name="u"), rows=9, missing=1, token_count=8, lengths={"max": 1})
    saved = vocabulary({b" a\t": 5, b"\xff\xfe": 3}, private=True, features={"user": summary})
    save_vocabulary(saved, tmp_path)
    assert (tmp_path / "user.txt").read_bytes() == b" a\t\n\xff\xfe\n"
    loaded = load_vocabularies(tmp_path)["user"]
    assert loaded.tokens.equals(saved.tokens)
    assert loaded.counts.tolist() == [5, 3]
    assert (loaded.features, loaded.digest, loaded.private) == (saved.features, saved.digest, True)


def test_saving_twice_gives_equal_bytes(tmp_path):
    for counts in ({b"a": 1, b"b": 1}, {b"b": 1, b"a": 1}):
        folder = tmp_path / next(iter(counts)).decode()
        folder.mkdir()
        save_vocabulary(vocabulary(counts), folder)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_files_of_many_chunks_are_those_of_numpy_and_of_lines(tmp_path):
    words = [b"%x" % number for number in range(600_000)]  # several chunks of each file
    saved = vocabulary(dict.fromkeys(words, 3))
    save_vocabulary(saved, tmp_path)
    assert (tmp_path / "user.txt").read_bytes() == b"".join(word + b"\n" for word in saved.tokens.to_pylist())
    np.save(tmp_path / "expected.npy", saved.counts)
    assert (tmp_path / "user.counts.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert load_vocabulary(tmp_path, "user").tokens.equals(saved.tokens)
    assert json.loads((tmp_path / "user.json").read_bytes())["digest"] == saved.digest


def test_every_field_of_the_description_is_sealed(tmp_path):
    summary = FeatureSummary(column=ColumnConfig(name="u"), rows=9, missing=1, token_count=8, lengths={"max": 1})
    first = vocabulary({b"a": 5, b"b": 3}, features={"user": summary})
    tokens, counts = pa.array([b"a", b"c"], pa.large_binary()), np.array([2, 2], np.int64)
    save_vocabulary(evolved_vocabulary(first, tokens, counts, mode="append", features=first.features), tmp_path)
    path = tmp_path / "user.json"
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with contextlib.suppress(VocabularyError):
            load_vocabulary(tmp_path, "user")
            assert chr(data[at]).isspace(), data[:at]  # replacing whitespace with other whitespace is harmless


@pytest.mark.parametrize("suffix", [".txt", ".counts.npy", ".json"])
def test_a_missing_file_is_named(tmp_path, suffix):
    save_vocabulary(vocabulary({b"a": 5}), tmp_path)
    (tmp_path / f"user{suffix}").unlink()
    with pytest.raises(VocabularyError, match=f"no file 'user{suffix}'"):
        load_vocabulary(tmp_path, "user")


def test_file_that_cannot_be_read_is_named(tmp_path):
    save_vocabulary(vocabulary({b"a": 5}), tmp_path)
    (tmp_path / "user.txt").unlink()
    (tmp_path / "user.txt").mkdir()
    with pytest.raises(VocabularyError, match=r"'user\.txt' in .* cannot be read"):
        load_vocabulary(tmp_path, "user")


def test_files_of_another_vocabulary_are_refused(tmp_path):
    save_vocabulary(vocabulary({b"a": 5}), tmp_path)
    for suffix in (".txt", ".counts.npy", ".json"):
        (tmp_path / f"user{suffix}").rename(tmp_path / f"item{suffix}")
    with pytest.raises(VocabularyError, match="'item'"):
        load_vocabulary(tmp_path, "item")


def test_an_empty_folder_holds_no_vocabulary(tmp_path):
    with pytest.raises(VocabularyError, match="holds no vocabulary"):
        load_vocabularies(tmp_path)


def test_percentiles_are_the_smallest_length_that_covers():
    assert length_percentiles([1, 98, 0, 1]) == {"p50": 1, "p90": 1, "p95": 1, "p99": 1, "max": 3}
    assert length_percentiles([60, 40]) == {"p50": 0, "p90": 1, "p95": 1, "p99": 1, "max": 1}
    assert length_percentiles([7]) == {"p50": 0, "p90": 0, "p95": 0, "p99": 0, "max": 0}


@pytest.fixture
def saved(tmp_path):
    """Two vocabularies and their set."""
    found = [vocabulary({b"a": 2, b"b": 1}, "user"), vocabulary({b"x": 1}, "item")]
    for item in found:
        save_vocabulary(item, tmp_path)
    save_set(tmp_path, {item.name: item.digest for item in found})
    return tmp_path


@pytest.mark.parametrize(("name", "words"), [("user", "'user' is missing"), ("other", "'other' is extra")])
def test_vocabulary_that_is_missing_or_extra_is_an_error(saved, name, words):
    if name == "user":
        (saved / "user.json").unlink()
    else:
        save_vocabulary(vocabulary({b"a": 1}, name), saved)
    with pytest.raises(VocabularyError, match=rf"{words}.*written with \['item', 'user'\]"):
        load_vocabularies(saved)


def test_vocabulary_of_another_set_is_an_error(saved):
    save_vocabulary(vocabulary({b"y": 1}, "item"), saved)
    with pytest.raises(VocabularyError, match="'item' is another one"):
        load_vocabularies(saved)


def test_set_that_is_damaged_is_an_error(saved):
    data = (saved / "vocabularies.set").read_bytes()
    for number in range(0, len(data), 7):
        (saved / "vocabularies.set").write_bytes(data[:number] + bytes([data[number] ^ 2]) + data[number + 1 :])
        with contextlib.suppress(VocabularyError):
            assert list(load_vocabularies(saved)) == ["item", "user"]  # the flipped bit was in whitespace
    (saved / "vocabularies.set").write_bytes(b"[]")
    with pytest.raises(VocabularyError, match=r"`vocabularies\.set` in .* is damaged"):
        load_vocabularies(saved)


def test_folder_of_an_earlier_release_has_no_set(saved):
    (saved / "vocabularies.set").unlink()
    assert list(load_vocabularies(saved)) == ["item", "user"]


def test_file_of_counts_is_read_as_far_as_the_tokens_need(tmp_path):
    save_vocabulary(vocabulary({b"a": 5, b"b": 3}), tmp_path)
    os.truncate(tmp_path / "user.counts.npy", 2**40)  # sparse
    with pytest.raises(VocabularyError, match="counts_digest"):
        load_vocabulary(tmp_path, "user")

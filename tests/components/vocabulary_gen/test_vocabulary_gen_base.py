"""VocabularyGen with the vocabularies of a previous run."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.artifacts import Vocabularies
from embedding_core.errors import DataError, VocabularyError
from tests.support.artifacts import artifact, fact, write_split
from tests.support.vocabulary_runs import count, feature

pytestmark = pytest.mark.tfx

FEATURES = [feature("user"), feature("seen", "user"), feature("tags", separator="|")]
MONDAY = [
    {"user": b"u1", "seen": [b"u2", b"u1"], "tags": b"a|b"},
    {"user": b"u2", "tags": b"a"},
]
TUESDAY = [
    {"user": b"u3", "seen": [b"u1", b"u3"], "tags": b"b|c|c"},
    {"user": b"u1", "seen": [b"u4", b"u5"], "tags": b"c|"},
    {"user": b"u1", "tags": b"b"},
    {"seen": b"u1", "tags": b""},
]


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Return the folder of the second day, and the vocabularies of the first day."""
    monday, tuesday = (tmp_path_factory.mktemp(name) for name in ("monday", "tuesday"))
    write_split(monday, MONDAY)
    write_split(tuesday, TUESDAY, files=2)
    return tuesday, *count(monday, FEATURES, out="out")


def test_append_keeps_the_rows_and_measures_the_drift(days):
    tuesday, base, _ = days
    made, found = count(tuesday, FEATURES, out="append", base=base, evolution={"mode": "append", "expire_after": 1})
    assert found["user"].tokens.to_pylist() == [b"u1", b"u2", b"u3", b"u4", b"u5"]
    assert found["tags"].tokens.to_pylist() == [b"a", b"b", b"c"]
    assert found["user"].counts.tolist() == [4, 0, 2, 1, 1]
    facts = fact(made, "vocabularies")
    assert facts["user"]["evolution"]["expired"] == 1
    # New for user: u3, in 1 of 4 rows, 1 of 3 tokens; for seen: u3, u4 and u5, in 2 of 4 rows, 3 of 5 tokens;
    # for tags: "c", in 2 of 4 rows, 3 of 5 tokens.
    assert facts["user"]["drift"]["user"] == {"new_rows": 1 / 4, "new_tokens": 1 / 3}
    assert facts["user"]["drift"]["seen"] == {"new_rows": 2 / 4, "new_tokens": 3 / 5}
    assert facts["tags"]["drift"]["tags"] == {"new_rows": 2 / 4, "new_tokens": 3 / 5}


def test_rerank_is_the_default(days):
    tuesday, base, _ = days
    _, found = count(tuesday, FEATURES, out="rerank", base=base)
    assert found["user"].tokens.to_pylist() == [b"u1", b"u2", b"u3", b"u4", b"u5"]
    assert found["tags"].tokens.to_pylist() == [b"c", b"a", b"b"]
    assert found["tags"].evolution.last_counts.tolist() == [3, 2, 2]


def test_feature_that_the_base_does_not_know_is_counted_anew(days, tmp_path):
    tuesday, base, _ = days
    for path in Path(base.uri).glob("user.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    made, found = count(tuesday, FEATURES, out="partly", base=artifact(Vocabularies, tmp_path))
    assert found["tags"].evolution is None
    assert "drift" not in fact(made, "vocabularies")["tags"]


def test_damaged_base_is_refused_before_anything_is_counted(days, tmp_path):
    tuesday, base, _ = days
    for path in Path(base.uri).glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b"u1", b"u9"))
    with pytest.raises(VocabularyError, match=r"vocabulary 'user'.*changed or damaged"):
        count(tuesday, FEATURES, out="never", base=artifact(Vocabularies, tmp_path))
    assert not (tuesday / "never").exists()


def test_base_that_is_not_there_is_one_error(days):
    nowhere = artifact(Vocabularies, "/no/such/folder", made=False)
    with pytest.raises(VocabularyError, match=r"'/no/such/folder' cannot be read as a folder of vocabularies"):
        count(days[0], FEATURES, out="never", base=nowhere)


def test_feature_may_be_empty_only_if_asked_for_and_in_the_base(days, tmp_path):
    _, base, before = days
    write_split(tmp_path, [{"user": b"u1", "seen": b"u1"}])
    allowed = [{**feature, "may_be_empty": True} for feature in FEATURES]
    _, after = count(tmp_path, allowed, out="out", base=base)
    assert after["tags"].tokens.equals(before["tags"].tokens)
    summary = after["tags"].features["tags"]
    assert (summary.column, summary.token_count) == (before["tags"].features["tags"].column, 0)
    for features, known in ((FEATURES, base), (allowed, None)):
        with pytest.raises(DataError, match=r"'tags' has no value in any of the 1 rows"):
            count(tmp_path, features, out="out", base=known)


def test_a_column_of_several_values_in_the_base_stays_one(days, tmp_path):
    _, base, before = days
    write_split(tmp_path, [{"user": b"u1", "seen": b"u1", "tags": b"a"}])
    _, after = count(tmp_path, FEATURES, out="out", base=base)
    assert before["user"].features["seen"].column.multivalent
    assert after["user"].features["seen"].column.multivalent
    assert not after["user"].features["user"].column.multivalent

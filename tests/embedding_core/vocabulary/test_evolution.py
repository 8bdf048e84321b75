from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedding_core.errors import ConfigError, VocabularyError
from embedding_core.vocabulary import evolved_vocabulary, load_vocabulary, save_vocabulary, vocabulary_from_counts

pytestmark = pytest.mark.light

RUN = st.dictionaries(st.sampled_from([b"a", b"b", b"c", b"d", b"e\n"]), st.integers(1, 4), max_size=5)
RUNS = st.lists(RUN, min_size=1, max_size=6)
FIRST = {b"a": 9, b"b": 5, b"c": 5, b"d": 2}


def arrays(counts):
    return pa.array(list(counts), pa.large_binary()), np.array(list(counts.values()), np.int64)


def counted(counts, **limits):
    return vocabulary_from_counts("v", *arrays(counts), **limits)


def evolved(base, counts, mode, **rule):
    return evolved_vocabulary(base, *arrays(counts), mode=mode, **rule)


def tokens(vocabulary):
    return vocabulary.tokens.to_pylist()


def test_append_leaves_rows_in_place_and_adds_the_new_in_order():
    found = evolved(counted(FIRST), {b"b": 7, b"z": 3, b"y": 3, b"x": 4}, "append")
    assert tokens(found) == [b"a", b"b", b"c", b"d", b"x", b"y", b"z"]
    assert found.counts.tolist() == [0, 7, 0, 0, 4, 3, 3]
    assert (found.total_count, found.distinct, found.coverage) == (17, 4, 1.0)
    facts = found.evolution.facts()
    assert [facts[key] for key in ("kept", "new", "dropped", "expired", "refused")] == [4, 3, 0, 0, 0]
    assert facts["base"] == counted(FIRST).digest


def test_append_reserves_the_row_of_an_expired_token_for_it():
    away = evolved(counted(FIRST), {b"a": 1, b"n": 1}, "append", expire_after=1)
    assert (tokens(away), away.evolution.expired) == ([b"a", b"b", b"c", b"d", b"n"], 3)
    back = evolved(away, {b"c": 1}, "append", expire_after=1)
    assert tokens(back)[2] == b"c"
    assert back.evolution.idle.tolist() == [1, 2, 0, 2, 1]
    assert back.evolution.last_counts.tolist() == [1, 5, 1, 2, 1]


def test_append_gives_no_row_beyond_max_size_and_takes_none_away():
    found = evolved(counted(FIRST), {b"x": 4, b"y": 3, b"z": 2}, "append", max_size=5)
    assert tokens(found) == [b"a", b"b", b"c", b"d", b"x"]
    assert found.evolution.refused == 2
    assert len(evolved(found, {b"q": 9}, "append", max_size=2)) == 5


def test_rerank_places_idle_tokens_by_their_last_count():
    found = evolved(counted(FIRST), {b"z": 6, b"d": 1}, "rerank", max_size=4)
    assert tokens(found) == [b"a", b"z", b"b", b"c"]
    assert found.evolution.last_counts.tolist() == [9, 6, 5, 5]
    facts = found.evolution.facts()
    assert [facts[key] for key in ("kept", "new", "dropped", "refused")] == [3, 1, 1, 0]


def test_rerank_gives_back_the_rows_of_expired_tokens():
    grown = evolved(counted(FIRST), {b"a": 1, b"n": 1}, "append", expire_after=1)
    assert tokens(evolved(grown, {b"d": 2, b"a": 1}, "rerank", expire_after=2)) == [b"d", b"a", b"n"]


def test_data_that_lets_everything_expire_is_an_error():
    with pytest.raises(ConfigError, match=r"`expire_after` 1 leaves vocabulary 'v' no token"):
        evolved(counted(FIRST), {}, "rerank", expire_after=1)


@settings(deadline=None)
@given(runs=RUNS, expire_after=st.integers(1, 4), min_count=st.integers(1, 3))
def test_rerank_has_the_tokens_counted_in_any_of_the_last_runs(runs, expire_after, min_count):
    found = counted(FIRST)
    for run in runs:
        found = evolved(found, {**run, b"a": 5}, "rerank", expire_after=expire_after, min_count=min_count)
    history = [FIRST, *({**run, b"a": 5} for run in runs)][-expire_after:]
    plain = [set(tokens(counted(run, min_count=min_count))) for run in history[1:]]
    first = set(FIRST) if len(history) > len(runs) else set(tokens(counted(history[0], min_count=min_count)))
    assert set(tokens(found)) == set.union(first, *plain)
    if expire_after == 1:
        assert tokens(found) == tokens(counted(history[-1], min_count=min_count))


@settings(deadline=None)
@given(runs=RUNS, expire_after=st.none() | st.integers(1, 3), max_size=st.none() | st.integers(1, 5))
def test_append_only_ever_appends(runs, expire_after, max_size):
    found = counted(FIRST)
    for run in runs:
        before = found
        found = evolved(before, run, "append", expire_after=expire_after, max_size=max_size)
        assert tokens(found)[: len(before)] == tokens(before)
        assert found.counts.sum() <= found.total_count
    assert len(set(tokens(found))) == len(found)


def test_saved_and_loaded_it_goes_on_as_if_it_never_had_been(tmp_path):
    first = evolved(counted(FIRST), {b"a": 1}, "append", expire_after=3)
    save_vocabulary(first, tmp_path)
    loaded = load_vocabulary(tmp_path, "v")
    assert loaded.evolution.facts() == first.evolution.facts()
    again, expected = (evolved(base, {b"b": 1}, "rerank") for base in (loaded, first))
    assert tokens(again) == tokens(expected)
    assert again.evolution.idle.tolist() == expected.evolution.idle.tolist()


def test_damaged_idleness_is_refused(tmp_path):
    save_vocabulary(evolved(counted(FIRST), {b"a": 1}, "append"), tmp_path)
    path = tmp_path / "v.evolution.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(VocabularyError, match=r"`evolution.digest`.*changed or damaged"):
        load_vocabulary(tmp_path, "v")

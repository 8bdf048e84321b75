from __future__ import annotations

import collections

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from components.vocabulary_gen import counting
from components.vocabulary_gen.counting import TokenCounts, merge_counts, read_counts, write_counts

PARTS = st.lists(st.lists(st.tuples(st.binary(max_size=2), st.integers(1, 2**40)), max_size=5), max_size=5)


def arrow(pairs):
    tokens = pa.array([token for token, _ in pairs], pa.large_binary())
    return tokens, np.array([count for _, count in pairs], np.int64)


def as_dict(part):
    return dict(zip(part[0].to_pylist(), part[1].tolist(), strict=True))


def expected(parts):
    total = collections.Counter()
    for token, count in (pair for part in parts for pair in part):
        total[token] += count
    return dict(total)


@settings(deadline=None)
@given(PARTS)
def test_compacting_now_and_then_changes_nothing(parts):
    counts = TokenCounts()
    for number, part in enumerate(parts):
        counts.add("v", *arrow(part))
        counts.compact(always=number % 2 == 0)
    assert as_dict(dict(counts.items()).get("v", arrow([]))) == expected(parts)


def test_messages_hold_what_was_written(monkeypatch):
    monkeypatch.setattr(counting, "_BYTES_PER_MESSAGE", 64)
    tokens, counts = arrow([(b"%d" % number, number + 1) for number in range(50)])
    messages = list(write_counts(tokens[3:], counts[3:]))
    assert len(messages) > 3
    assert as_dict(merge_counts(map(read_counts, messages))) == as_dict((tokens[3:], counts[3:]))
    assert sum(map(len, messages)) < 50 * 500


def test_pending_parts_merge_before_outgrowing_distinct_tokens(monkeypatch):
    monkeypatch.setattr(counting, "_PENDING_LIMIT", 100)
    counts = TokenCounts()
    for _ in range(1000):
        counts.add("v", *arrow([(b"a", 1), (b"b", 2)]))
        counts.compact()
        assert sum(len(tokens) for tokens, _ in counts._parts["v"]) <= 104
    assert as_dict(dict(counts.items())["v"]) == {b"a": 1000, b"b": 2000}

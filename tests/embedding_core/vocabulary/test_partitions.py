"""A vocabulary merged from sorted partitions is written with the same bytes as one held in memory as a whole."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from embedding_core.vocabulary import (
    merge_sorted,
    partition_of,
    save_in_blocks,
    save_vocabulary,
    total_order,
    vocabulary_from_counts,
)

pytestmark = pytest.mark.light

SIZE = 5000


@pytest.fixture(scope="module")
def counted():
    """Tokens of 1 to 39 bytes, and their counts, with many ties."""
    random = np.random.default_rng(1)
    tokens = list({bytes(random.integers(32, 255, random.integers(1, 40), np.uint8)) for _ in range(SIZE)})
    return pa.array(tokens, pa.large_binary()), random.zipf(1.6, len(tokens)).clip(max=10**6).astype(np.int64)


def blocks(tokens, counts, rows):
    order = total_order(tokens, counts)
    for start in range(0, len(order), rows):
        part = order[start : start + rows]
        yield tokens.take(pa.array(part)), counts[part]


def in_parts(counted, parts, rows):
    tokens, counts = counted
    of = partition_of(tokens, parts)
    places = [np.flatnonzero(of == part) for part in range(parts)]
    return [blocks(tokens.take(pa.array(place)), counts[place], rows) for place in places]


@pytest.mark.parametrize(("parts", "rows"), [(1, 7), (3, 100), (16, 1), (16, 10**6)])
def test_merge_is_the_total_order(counted, parts, rows):
    tokens, counts = counted
    order = total_order(tokens, counts)
    merged = list(merge_sorted(in_parts(counted, parts, rows)))
    assert pa.concat_arrays([part for part, _ in merged]).equals(tokens.take(pa.array(order)))
    assert np.concatenate([part for _, part in merged]).tolist() == counts[order].tolist()


@pytest.mark.parametrize("max_size", [None, 1, 1234])
def test_merged_files_are_those_of_a_vocabulary_held_whole(counted, tmp_path, max_size):
    whole = vocabulary_from_counts("v", *counted, max_size=max_size)
    for name in ("whole", "merged"):
        (tmp_path / name).mkdir()
    save_vocabulary(whole, tmp_path / "whole")
    without = dataclasses.replace(whole, tokens=pa.array([], pa.large_binary()), counts=np.zeros(0, np.int64))
    facts = save_in_blocks(without, merge_sorted(in_parts(counted, 5, 64)), len(whole), tmp_path / "merged")
    assert facts == {"digest": whole.digest, "coverage": whole.coverage}
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (tmp_path / "merged" / file.name).read_bytes(), file.name


def test_parts_are_even_and_depend_on_the_token_alone(counted):
    tokens, _ = counted
    of = partition_of(tokens, 8)
    assert np.bincount(of, minlength=8).min() > len(tokens) / 8 * 0.8
    assert partition_of(tokens[100:300], 8).tolist() == of[100:300].tolist()
    assert partition_of(pa.array([b"", b"a", b"aa"], pa.large_binary()), 8)[0] == 0
    assert partition_of(pa.array([], pa.large_binary()), 8).tolist() == []


def test_parts_of_numbers_in_a_row_are_even():
    tokens = pa.array([str(number).encode() for number in range(10_000)], pa.large_binary())
    assert np.bincount(partition_of(tokens, 16), minlength=16).min() > 10_000 / 16 * 0.7

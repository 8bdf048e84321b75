"""Writes the files of vocabularies, in parts if they are large, reads them back and verifies them.

A vocabulary is three files: `<name>.txt`, the tokens one per line, as tf.lookup, TensorFlow Transform and TensorBoard
read them; `<name>.counts.npy`; and `<name>.json`, everything else. A vocabulary that evolved from a previous one, its
base, has a fourth, `<name>.evolution.npy`. A folder of vocabularies also has `vocabularies.set`, which lists them all,
so that a missing one is an error; folders of earlier releases lack it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embedding_core.config import ColumnConfig
from embedding_core.errors import VocabularyError
from embedding_core.storage import StrPath, bounded_content, is_folder, names_in, open_file, sealed_json, unsealed_json
from embedding_core.vocabulary.vocabulary import (
    DigestedFile,
    Evolution,
    FeatureSummary,
    Vocabulary,
    data_chunks,
    npy_header,
    plain_chunks,
    read_tokens,
    sha256_of,
    total_order,
)

Block: TypeAlias = tuple[pa.Array, npt.NDArray[np.int64]]
"""Distinct tokens (large_binary) and their counts (int64)."""

_EVOLUTION = ".evolution.npy"
_SET = "vocabularies.set"
_PLAIN = ("total_count", "distinct", "unrepresentable", "min_count", "max_size", "private")
_MOST_HEADER = 4096  # bytes before the values of an array


def save_vocabulary(vocabulary: Vocabulary, folder: StrPath) -> None:
    """Write the files of a vocabulary into an existing folder; equal vocabularies give equal bytes."""
    blocks = [(vocabulary.tokens, vocabulary.counts)]
    save_in_blocks(vocabulary, blocks, len(vocabulary), folder)


def save_in_blocks(vocabulary: Vocabulary, blocks: Iterable[Block], size: int, folder: StrPath) -> dict[str, Any]:
    """Write the files of a vocabulary whose tokens come block by block, with one block in memory at a time.

    Args:
      vocabulary: gives everything but tokens and counts.
      blocks: tokens and counts, in the order of the rows; those after the first `size` tokens are ignored.
      size: number of tokens that get a row.
      folder: existing folder to write to.

    Returns:
      `digest` and `coverage` of the vocabulary.
    """
    path = os.path.join(folder, vocabulary.name)
    covered, left = 0, size
    with open_file(path + ".txt", "wb") as tokens_file, open_file(path + ".counts.npy", "wb") as counts_file:
        plain, counted = DigestedFile(tokens_file), DigestedFile(counts_file)
        counted.write([npy_header((size,))])
        for tokens, counts in blocks:
            plain.write(plain_chunks(tokens[:left]))
            counted.write(data_chunks(counts[:left]))
            covered, left = covered + int(counts[:left].sum()), left - len(counts[:left])
            if not left:
                break
    coverage = covered / max(1, vocabulary.total_count)
    description = {
        "name": vocabulary.name,
        "digest": plain.digest,
        "counts_digest": counted.digest,
        "size": size,
        "coverage": coverage,
        **{key: getattr(vocabulary, key) for key in _PLAIN},
        "features": {name: _summary_to_json(summary) for name, summary in sorted(vocabulary.features.items())},
    }
    if vocabulary.evolution is not None:
        description["evolution"] = _save_evolution(vocabulary.evolution, path)
    _write(path + ".json", description)
    return {"digest": plain.digest, "coverage": coverage}


def _save_evolution(evolution: Evolution, path: str) -> dict[str, Any]:
    arrays = np.stack([evolution.idle, evolution.last_counts])
    with open_file(path + _EVOLUTION, "wb") as opened:
        file = DigestedFile(opened)
        file.write([npy_header(arrays.shape)])
        file.write(data_chunks(arrays))
    return {**evolution.facts(), "digest": file.digest}


def _write(path: str, facts: Mapping[str, Any]) -> None:
    with open_file(path, "wb") as file:
        file.write(sealed_json(facts))


def _summary_to_json(summary: FeatureSummary) -> dict[str, Any]:
    facts = {**dataclasses.asdict(summary), "column": summary.column.to_mapping()}
    return {key: value for key, value in facts.items() if value is not None}


def _summary_from_json(data: Mapping[str, Any]) -> FeatureSummary:
    return FeatureSummary(**{**data, "column": ColumnConfig(**data["column"])})


class _Files(NamedTuple):
    """The files of one vocabulary."""

    folder: StrPath
    name: str

    def read_description(self) -> Mapping[str, Any]:
        with _opened(self.folder, self.name + ".json") as file:
            return unsealed_json(bounded_content(file))

    def read_tokens(self, description: Mapping[str, Any]) -> pa.Array:
        with _opened(self.folder, self.name + ".txt") as file:
            tokens, digest = read_tokens(file)
        for key, value in {"name": self.name, "digest": digest, "size": len(tokens)}.items():
            self._check(key, value, description[key])
        return tokens

    def read_array(self, suffix: str, key: str, digest: str, values: int) -> npt.NDArray[np.int64]:
        with _opened(self.folder, self.name + suffix) as file:
            data = file.read(_MOST_HEADER + 8 * values)  # of a longer file the digest differs
        self._check(key, sha256_of([data]), digest)
        array: npt.NDArray[np.int64] = np.load(io.BytesIO(data), allow_pickle=False)
        return array

    def read_evolution(self, facts: Mapping[str, Any] | None, size: int) -> Evolution | None:
        if facts is None:
            return None
        idle, last_counts = self.read_array(_EVOLUTION, "evolution.digest", facts["digest"], 2 * size)
        plain = {key: value for key, value in facts.items() if key not in ("digest", "expired")}
        return Evolution(idle=idle, last_counts=last_counts, **plain)

    def _check(self, key: str, actual: object, recorded: object) -> None:
        if actual != recorded:
            raise VocabularyError(
                f"vocabulary {self.name!r} in {os.fspath(self.folder)!r}: its `{key}` is {actual!r}, but {recorded!r} "
                "was written: its files were changed or damaged; restore them, or make the vocabulary again."
            )


def load_vocabulary(folder: StrPath, name: str) -> Vocabulary:
    """Read what `save_vocabulary` wrote, and verify it.

    Raises:
      VocabularyError: a file is missing, damaged, or of another vocabulary.
    """
    files = _Files(folder, name)
    try:
        description = files.read_description()
        size = int(description["size"])
        return Vocabulary(
            name=name,
            tokens=files.read_tokens(description),
            counts=files.read_array(".counts.npy", "counts_digest", description["counts_digest"], size),
            features={key: _summary_from_json(value) for key, value in description["features"].items()},
            evolution=files.read_evolution(description.get("evolution"), size),
            **{key: description[key] for key in _PLAIN},
        )
    except VocabularyError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise VocabularyError(
            f"`{name}.json` in {os.fspath(folder)!r} does not describe a vocabulary as it was written ({error}): it "
            "was changed or damaged; restore it, or make the vocabulary again."
        ) from error


@contextlib.contextmanager
def _opened(folder: StrPath, file_name: str) -> Iterator[IO[bytes]]:
    try:
        with open_file(os.path.join(folder, file_name)) as file:
            yield file
    except FileNotFoundError as error:
        raise VocabularyError(
            f"{os.fspath(folder)!r} has no file {file_name!r}: a vocabulary is `<name>.txt`, `<name>.counts.npy` and "
            "`<name>.json`, with a base also `<name>.evolution.npy`; copy all, or make the vocabulary again."
        ) from error
    except OSError as error:
        raise VocabularyError(
            f"{file_name!r} in {os.fspath(folder)!r} cannot be read ({error}): restore it, or make the vocabulary "
            "again."
        ) from error


def save_set(folder: StrPath, digests: Mapping[str, str]) -> None:
    """Write the file that lists the vocabularies of a folder; call this after all of them are saved.

    Args:
      folder: folder of the vocabularies.
      digests: digest of each vocabulary, by name.
    """
    _write(os.path.join(folder, _SET), {"vocabularies": dict(digests)})


def load_vocabularies(folder: StrPath) -> dict[str, Vocabulary]:
    """Read and verify every vocabulary of a folder.

    Args:
      folder: folder that `save_vocabulary` wrote to.

    Returns:
      Name -> vocabulary, sorted by name.

    Raises:
      VocabularyError: a file or vocabulary is missing or damaged, or the folder is missing or holds no vocabulary.
    """
    if not is_folder(folder):
        raise VocabularyError(
            f"{os.fspath(folder)!r} cannot be read as a folder of vocabularies: there is no such folder; give the URI "
            "of a Vocabularies artifact."
        )
    file_names = names_in(folder)
    names = sorted(name.removesuffix(".json") for name in file_names if name.endswith(".json"))
    if not names:
        raise VocabularyError(
            f"{os.fspath(folder)!r} holds no vocabulary: `<name>.json` is missing; give the URI of a Vocabularies "
            "artifact."
        )
    loaded = {name: load_vocabulary(folder, name) for name in names}
    if _SET in file_names:
        _check_set(folder, {name: vocabulary.digest for name, vocabulary in loaded.items()})
    return loaded


def _check_set(folder: StrPath, digests: Mapping[str, str]) -> None:
    try:
        with _opened(folder, _SET) as file:
            recorded = dict(unsealed_json(bounded_content(file))["vocabularies"])
    except (KeyError, TypeError, ValueError) as error:
        raise VocabularyError(
            f"`{_SET}` in {os.fspath(folder)!r} is damaged ({error}): restore it, or make the vocabularies again."
        ) from error
    wrong = sorted(name for name in recorded.keys() | digests.keys() if recorded.get(name) != digests.get(name))
    if wrong:
        what = "is missing" if wrong[0] not in digests else "is another one" if wrong[0] in recorded else "is extra"
        raise VocabularyError(
            f"vocabulary {wrong[0]!r} {what} in {os.fspath(folder)!r}, which was written with {sorted(recorded)}: "
            "restore its files, or make the vocabularies again."
        )


# Partitions the tokens of a vocabulary that is too large for one process, and merges the sorted partitions.
#
# A token is in one partition only, and each partition is in the total order (count descending, then bytes ascending).
# Merging holds one block of each partition in memory; `save_in_blocks` writes the merged blocks.

_TOKENS_AT_ONCE = 1 << 16


def partition_of(tokens: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
    """Assign each token to one of `partitions` by a hash of its bytes, which is the same in every process.

    Returns:
      [n] int64: the number of each token's partition.
    """
    slices = (tokens[start : start + _TOKENS_AT_ONCE] for start in range(0, len(tokens), _TOKENS_AT_ONCE))
    values = itertools.chain.from_iterable(part.to_numpy(zero_copy_only=False) for part in slices)
    hashes = np.fromiter(map(zlib.crc32, values), np.int64, len(tokens))
    partition: npt.NDArray[np.int64] = hashes % partitions
    return partition


def merge_sorted(partitions: Sequence[Iterator[Block]]) -> Iterator[Block]:
    """Merge sorted streams of blocks that have no token in common into one sorted stream.

    Each round takes everything up to the last token of the block that ends first: nothing that is still unread can
    come before that token.
    """
    heads = [head for head in (_Head(blocks) for blocks in partitions) if head.fill()]
    while heads:
        cut = min(head.last() for head in heads)
        taken = [head.take_to(cut) for head in heads]
        tokens = pa.concat_arrays([tokens for tokens, _ in taken])
        counts = np.concatenate([counts for _, counts in taken])
        order = total_order(tokens, counts)
        yield tokens.take(pa.array(order)), counts[order]
        heads = [head for head in heads if head.fill()]


class _Head:
    """The unread rest of the current block of one partition."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._tokens, self._counts = pa.array([], pa.large_binary()), np.zeros(0, np.int64)

    def fill(self) -> bool:
        """Read the next block if this one is used up, and return whether anything is left."""
        while not len(self._tokens):
            block = next(self._blocks, None)
            if block is None:
                return False
            self._tokens, self._counts = block
        return True

    def _key(self, row: int) -> tuple[int, bytes]:
        return -int(self._counts[row]), self._tokens[row].as_py()

    def last(self) -> tuple[int, bytes]:
        return self._key(len(self._tokens) - 1)

    def take_to(self, cut: tuple[int, bytes]) -> Block:
        """Remove and return everything up to and including the cut."""
        low, high = 0, len(self._tokens)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._key(middle) <= cut else (low, middle)
        taken = self._tokens[:low], self._counts[:low]
        self._tokens, self._counts = self._tokens[low:], self._counts[low:]
        return taken

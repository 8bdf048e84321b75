"""Vocabularies: the tokens that rows belong to, with their counts and a digest; no TensorFlow.

Row i of a table belongs to token i. The order is total (count descending, then bytes ascending), so the
same data gives the same rows wherever and however often it is counted.

A vocabulary that was made with an earlier one as its base (`embedding_core.vocabulary.evolution`) may have another
order, and tokens that its data does not have.

On disk a vocabulary is three files: `<name>.txt`, the tokens one per line, as tf.lookup, TensorFlow
Transform and TensorBoard read them; `<name>.counts.npy`; and `<name>.json`, everything else. With a base there is
a fourth, `<name>.evolution.npy`. A folder of several has `vocabularies.set`, which names them all, so that a missing
one is an error; a folder of an earlier release has none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedding_core.config import ColumnConfig, EvolutionMode, check_name
from embedding_core.errors import ConfigError, VocabularyError
from embedding_core.storage.seals import sealed_json, unsealed_json
from embedding_core.vocabulary.chunks import (
    DigestedFile,
    npy_chunks,
    plain_chunks,
    read_tokens,
    sha256_of,
)

__all__ = [
    "Evolution",
    "FeatureSummary",
    "Vocabulary",
    "description_of",
    "drift_of",
    "length_percentiles",
    "load_vocabularies",
    "load_vocabulary",
    "representable",
    "save_set",
    "save_vocabulary",
    "total_order",
    "vocabulary_from_counts",
]

_UNREPRESENTABLE = (b"\n", b"\r", b"\0")
_EVOLUTION = ".evolution.npy"
_SET = "vocabularies.set"
_PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
_OpenFile = Callable[..., Any]
_PLAIN = ("total_count", "distinct", "unrepresentable", "min_count", "max_size", "private")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSummary:
    """What counting found out about one feature that feeds a vocabulary.

    Attributes:
      column: the feature's column, with the dtype and valency found in the data.
      rows: rows read.
      missing: rows without any token.
      token_count: token occurrences.
      lengths: tokens per row, empty rows included: the smallest length that at least 50, 90, 95, 99
        and 100% of the rows do not exceed, as "p50", "p90", "p95", "p99" and "max".
      new_rows: rows with at least one token that the base vocabulary does not have; None without a base.
      new_tokens: token occurrences that it does not have; None without a base.
    """

    column: ColumnConfig
    rows: int
    missing: int
    token_count: int
    lengths: Mapping[str, int]
    new_rows: int | None = None
    new_tokens: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evolution:
    """How a vocabulary came out of an earlier one, its base; the rule is `embedding_core.vocabulary.evolution`'s.

    Attributes:
      mode: "append" leaves every row of the base where it is, "rerank" puts all tokens in order anew.
      expire_after: runs after which a token that was not counted often enough in any of them expires; None for never.
      base: digest of the base.
      kept: tokens of the base that have a row.
      new: tokens with a row that the base does not have.
      dropped: tokens of the base without a row.
      refused: tokens that were counted often enough, but for which `max_size` left no row.
      idle: [size] int64: for how many runs, this one included, each token was not counted often enough.
      last_counts: [size] int64: the count of each token in the last run in which it was.
    """

    mode: EvolutionMode
    expire_after: int | None
    base: str
    kept: int
    new: int
    dropped: int
    refused: int
    idle: npt.NDArray[np.int64]
    last_counts: npt.NDArray[np.int64]

    @property
    def expired(self) -> int:
        """Rows whose token has expired, and which are only reserved for it."""
        return 0 if self.expire_after is None else int(np.count_nonzero(self.idle >= self.expire_after))

    def facts(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON values."""
        names = ("mode", "expire_after", "base", "kept", "new", "dropped", "refused", "expired")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary:
    """The tokens of one vocabulary in the order of their rows.

    Attributes:
      name: file name and default table name.
      tokens: [size] pyarrow large_binary array: the tokens that have rows.
      counts: [size] int64: how often each occurred; 0 is possible where there was a base.
      total_count: occurrences of all tokens, those without a row included.
      distinct: distinct tokens seen, unrepresentable ones left out.
      unrepresentable: occurrences of tokens that hold LF, CR or NUL, which no text vocabulary can hold.
      min_count: tokens that occurred less often have no row.
      max_size: at most that many tokens have rows; None for no limit.
      private: whether tokens may be shown only as digests.
      features: what was found out about each feature that feeds this vocabulary, by name.
      evolution: how it came out of an earlier vocabulary; None where it was counted without one.
    """

    name: str
    tokens: pa.Array
    counts: npt.NDArray[np.int64]
    total_count: int
    distinct: int
    unrepresentable: int = 0
    min_count: int = 1
    max_size: int | None = None
    private: bool = False
    features: Mapping[str, FeatureSummary] = dataclasses.field(default_factory=dict)
    evolution: Evolution | None = None

    def __post_init__(self) -> None:
        check_name("a vocabulary", self.name)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def coverage(self) -> float:
        """Share of the token occurrences whose token has a row, from 0 to 1."""
        return int(self.counts.sum()) / max(1, self.total_count)

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 of the plain token file's bytes, in hexadecimal."""
        return sha256_of(plain_chunks(self.tokens))

    def mapping_to(self, other: Vocabulary) -> npt.NDArray[np.int64]:
        """For each row of this vocabulary the row of the same token in the other.

        Returns:
          [size] int64; -1 for tokens that have no row in the other.
        """
        found = pc.fill_null(pc.index_in(self.tokens, value_set=other.tokens), -1)
        mapping: npt.NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
        return mapping


def drift_of(summary: FeatureSummary) -> dict[str, float]:
    """How much of a feature's data the base vocabulary does not know.

    Returns:
      "new_rows", the share of the rows with at least one token that it does not have, and "new_tokens", the share of
      the token occurrences; from 0 to 1. Empty without a base.
    """
    if summary.new_rows is None or summary.new_tokens is None:
        return {}
    return {
        "new_rows": summary.new_rows / max(1, summary.rows),
        "new_tokens": summary.new_tokens / max(1, summary.token_count),
    }


def length_percentiles(histogram: npt.ArrayLike) -> dict[str, int]:
    """Percentiles of the tokens per row.

    Args:
      histogram: [longest + 1] how many rows have 0, 1, 2, ... tokens.

    Returns:
      "p50", "p90", "p95", "p99", "max": the smallest length that at least so many rows do not exceed.
    """
    rows = np.cumsum(np.asarray(histogram, np.int64))
    total = int(rows[-1]) if rows.size else 0
    return {name: int(np.searchsorted(rows * 100, total * share)) for name, share in _PERCENTILES.items()}


def vocabulary_from_counts(
    name: str,
    tokens: pa.Array,
    counts: npt.NDArray[np.int64],
    *,
    min_count: int = 1,
    max_size: int | None = None,
    private: bool = False,
    features: Mapping[str, FeatureSummary] | None = None,
) -> Vocabulary:
    """Put counted tokens in order and keep those that get a row.

    Args:
      name: name of the vocabulary.
      tokens: [n] large_binary, each distinct token once, in any order.
      counts: [n] int64.
      min_count: least count of a token with a row; >= 1.
      max_size: most tokens with a row; None for no limit.
      private: whether tokens may be shown only as digests.
      features: what was found out about each feature.

    Raises:
      ConfigError: a threshold that leaves no token, though there are some.
    """
    total = int(counts.sum())
    tokens, counts = representable(tokens, counts)
    order = total_order(tokens, counts)
    kept = order[: np.searchsorted(-counts[order], -min_count, side="right")][:max_size]
    if len(order) and not len(kept):
        raise ConfigError(
            f"`min_count` {min_count}, `max_size` {max_size} of vocabulary {name!r} leave no token: the most frequent "
            f"of its {len(order)} tokens occurs {counts[order[0]]} times; use lower thresholds."
        )
    return Vocabulary(
        name=name,
        tokens=tokens.take(pa.array(kept)),
        counts=counts[kept],
        total_count=total,
        distinct=len(order),
        unrepresentable=total - int(counts.sum()),
        min_count=min_count,
        max_size=max_size,
        private=private,
        features=dict(features or {}),
    )


def total_order(tokens: pa.Array, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the tokens are, the most frequent first, and of equally frequent ones the smallest bytes."""
    order: npt.NDArray[np.uint64] = pc.sort_indices(
        pa.table({"count": counts, "token": tokens}), [("count", "descending"), ("token", "ascending")]
    ).to_numpy()
    return order.astype(np.int64)


def representable(tokens: pa.Array, counts: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The tokens that a text vocabulary can hold, and their counts."""
    masks = [pc.match_substring(tokens, pattern).to_numpy(zero_copy_only=False) for pattern in _UNREPRESENTABLE]
    good = ~np.logical_or.reduce(masks)
    return (tokens, counts) if good.all() else (tokens.filter(pa.array(good)), counts[good])


def save_vocabulary(vocabulary: Vocabulary, folder: str | os.PathLike[str], *, open_file: _OpenFile = open) -> None:
    """Write the files of a vocabulary into a folder that exists; equal vocabularies give equal bytes.

    Args:
      vocabulary: what to write.
      folder: where to.
      open_file: opens a path, `open` by default; give another for remote file systems.
    """

    def written(suffix: str, chunks: Iterable[bytes]) -> str:
        return _write(os.path.join(folder, vocabulary.name + suffix), chunks, open_file)

    description = description_of(
        vocabulary,
        digest=written(".txt", plain_chunks(vocabulary.tokens)),
        counts_digest=written(".counts.npy", npy_chunks(vocabulary.counts)),
        size=len(vocabulary),
        coverage=vocabulary.coverage,
    )
    evolution = vocabulary.evolution
    if evolution is not None:
        digest = written(_EVOLUTION, npy_chunks(np.stack([evolution.idle, evolution.last_counts])))
        description["evolution"] = {**evolution.facts(), "digest": digest}
    written(".json", [sealed_json(description)])


def description_of(
    vocabulary: Vocabulary, *, digest: str, counts_digest: str, size: int, coverage: float
) -> dict[str, Any]:
    """What `<name>.json` says of a vocabulary, whose tokens may lie elsewhere: then it says how many there are."""
    return {
        "name": vocabulary.name,
        "digest": digest,
        "counts_digest": counts_digest,
        "size": size,
        "coverage": coverage,
        **{key: getattr(vocabulary, key) for key in _PLAIN},
        "features": {name: _summary_to_json(summary) for name, summary in sorted(vocabulary.features.items())},
    }


def _write(path: str, chunks: Iterable[bytes], open_file: _OpenFile) -> str:
    """Write a file; returns the digest of what was written."""
    with DigestedFile(path, open_file) as file:
        for chunk in chunks:
            file.write(chunk)
    return file.digest


def _summary_to_json(summary: FeatureSummary) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(summary).items() if value is not None}


def load_vocabulary(folder: str | os.PathLike[str], name: str, *, open_file: _OpenFile = open) -> Vocabulary:
    """Read what `save_vocabulary` wrote, and verify it.

    Args:
      folder: where its files are.
      name: name of the vocabulary.
      open_file: opens a path, `open` by default; give another for remote file systems.

    Raises:
      VocabularyError: a file is missing, damaged, or of another vocabulary.
    """
    try:
        description = unsealed_json(_read(folder, name + ".json", open_file))
        evolution = description.get("evolution")
        tokens = _read_tokens(folder, name, description, open_file)
        return Vocabulary(
            name=name,
            tokens=tokens,
            counts=_read_array(folder, name, ".counts.npy", "counts_digest", description["counts_digest"], open_file),
            features={key: _summary_from_json(value) for key, value in description["features"].items()},
            evolution=None if evolution is None else _read_evolution(folder, name, evolution, open_file),
            **{key: description[key] for key in _PLAIN},
        )
    except VocabularyError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise VocabularyError(
            f"`{name}.json` in {os.fspath(folder)!r} does not describe a vocabulary as it was written ({error}): it "
            "was changed or damaged; restore it, or make the vocabulary again."
        ) from error


def _read_tokens(
    folder: str | os.PathLike[str], name: str, description: Mapping[str, Any], open_file: _OpenFile
) -> pa.Array:
    with _opened(folder, name + ".txt", open_file) as file:
        tokens, digest = read_tokens(file)
    found = {"name": name, "digest": digest, "size": len(tokens)}
    for key, value in found.items():
        _check_same(folder, name, key, value, description[key])
    return tokens


def _read_array(
    folder: str | os.PathLike[str], name: str, suffix: str, key: str, digest: str, open_file: _OpenFile
) -> npt.NDArray[np.int64]:
    data = _read(folder, name + suffix, open_file)
    _check_same(folder, name, key, sha256_of([data]), digest)
    array: npt.NDArray[np.int64] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _read_evolution(
    folder: str | os.PathLike[str], name: str, described: Mapping[str, Any], open_file: _OpenFile
) -> Evolution:
    idle, last_counts = _read_array(folder, name, _EVOLUTION, "evolution.digest", described["digest"], open_file)
    facts = {key: value for key, value in described.items() if key not in ("digest", "expired")}
    return Evolution(idle=idle, last_counts=last_counts, **facts)


def _read(folder: str | os.PathLike[str], file_name: str, open_file: _OpenFile) -> bytes:
    with _opened(folder, file_name, open_file) as file:
        data: bytes = file.read()
        return data


@contextlib.contextmanager
def _opened(folder: str | os.PathLike[str], file_name: str, open_file: _OpenFile) -> Iterator[Any]:
    try:
        with open_file(os.path.join(folder, file_name), "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise VocabularyError(
            f"{os.fspath(folder)!r} has no file {file_name!r}: a vocabulary is `<name>.txt`, `<name>.counts.npy` and "
            "`<name>.json`, with a base also `<name>.evolution.npy`; copy all, or make the vocabulary again."
        ) from error


def _check_same(folder: str | os.PathLike[str], name: str, key: str, found: object, written: object) -> None:
    if found != written:
        raise VocabularyError(
            f"vocabulary {name!r} in {os.fspath(folder)!r}: its `{key}` is {found!r}, but {written!r} was "
            "written: its files were changed or damaged; restore them, or make the vocabulary again."
        )


def _summary_from_json(data: Mapping[str, Any]) -> FeatureSummary:
    return FeatureSummary(**{**data, "column": ColumnConfig(**data["column"])})


def save_set(folder: str | os.PathLike[str], digests: Mapping[str, str], *, open_file: _OpenFile = open) -> None:
    """Write which vocabularies a folder holds; call it when all of them are saved.

    Args:
      folder: where they are.
      digests: of each vocabulary, by name.
      open_file: opens a path, `open` by default; give another for remote file systems.
    """
    with open_file(os.path.join(folder, _SET), "wb") as file:
        file.write(sealed_json({"vocabularies": dict(digests)}))


def load_vocabularies(
    folder: str | os.PathLike[str],
    *,
    open_file: _OpenFile = open,
    list_folder: Callable[[Any], list[str]] = os.listdir,
) -> dict[str, Vocabulary]:
    """Read and verify every vocabulary of a folder.

    Args:
      folder: where `save_vocabulary` wrote.
      open_file: opens a path, `open` by default; give another for remote file systems.
      list_folder: names of the files of a folder, `os.listdir` by default.

    Returns:
      Name -> vocabulary, by name.

    Raises:
      VocabularyError: a file or a vocabulary is missing or damaged, or the folder holds no vocabulary or is not there.
    """
    try:
        found = list_folder(folder)
    except OSError as error:  # TFX's own error for a missing folder is one
        raise VocabularyError(
            f"{os.fspath(folder)!r} cannot be read as a folder of vocabularies ({error!r}): give the URI of a "
            "Vocabularies artifact."
        ) from error
    names = sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))
    if not names:
        raise VocabularyError(f"{os.fspath(folder)!r} holds no vocabulary: there is no `<name>.json` in it.")
    loaded = {name: load_vocabulary(folder, name, open_file=open_file) for name in names}
    if _SET in found:
        _check_set(folder, {name: vocabulary.digest for name, vocabulary in loaded.items()}, open_file)
    return loaded


def _check_set(folder: str | os.PathLike[str], digests: Mapping[str, str], open_file: _OpenFile) -> None:
    try:
        written = dict(unsealed_json(_read(folder, _SET, open_file))["vocabularies"])
    except (KeyError, TypeError, ValueError) as error:
        raise VocabularyError(
            f"`{_SET}` in {os.fspath(folder)!r} is damaged ({error}): restore it, or make the vocabularies again."
        ) from error
    wrong = sorted(name for name in written.keys() | digests.keys() if written.get(name) != digests.get(name))
    if wrong:
        what = "is missing" if wrong[0] not in digests else "is another one" if wrong[0] in written else "is extra"
        raise VocabularyError(
            f"vocabulary {wrong[0]!r} {what} in {os.fspath(folder)!r}, which was written with {sorted(written)}: "
            "restore its files, or make the vocabularies again."
        )

"""Vocabularies: the tokens that rows belong to, with their counts and a digest; no TensorFlow.

Row i of a table belongs to token i. The order is total (count descending, then bytes ascending), so the
same data gives the same rows wherever and however often it is counted.

On disk a vocabulary is three files: `<name>.txt`, the tokens one per line, as tf.lookup, TensorFlow
Transform and TensorBoard read them; `<name>.counts.npy`; and `<name>.json`, everything else.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedding_core.config import ColumnConfig, check_name
from embedding_core.errors import ConfigError, VocabularyError

__all__ = [
    "FeatureSummary",
    "Vocabulary",
    "length_percentiles",
    "load_vocabularies",
    "load_vocabulary",
    "save_vocabulary",
    "vocabulary_from_counts",
]

_UNREPRESENTABLE = (b"\n", b"\r", b"\0")
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
    """

    column: ColumnConfig
    rows: int
    missing: int
    token_count: int
    lengths: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary:
    """The tokens of one vocabulary in the order of their rows.

    Attributes:
      name: file name and default table name.
      tokens: [size] pyarrow large_binary array: the tokens that have rows.
      counts: [size] int64: how often each occurred.
      total_count: occurrences of all tokens, those without a row included.
      distinct: distinct tokens seen, unrepresentable ones left out.
      unrepresentable: occurrences of tokens that hold LF, CR or NUL, which no text vocabulary can hold.
      min_count: tokens that occurred less often have no row.
      max_size: at most that many tokens have rows; None for no limit.
      private: whether tokens may be shown only as digests.
      features: what was found out about each feature that feeds this vocabulary, by name.
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
        return hashlib.sha256(self.plain_text()).hexdigest()

    def plain_text(self) -> bytes:
        """The bytes of `<name>.txt`: each token followed by a line feed."""
        if not len(self.tokens):
            return b""
        row = pa.LargeListArray.from_arrays(pa.array([0, len(self.tokens)], pa.int64()), self.tokens)
        joined: bytes = pc.binary_join(row, pa.scalar(b"\n", pa.large_binary()))[0].as_py()
        return joined + b"\n"

    def mapping_to(self, other: Vocabulary) -> npt.NDArray[np.int64]:
        """For each row of this vocabulary the row of the same token in the other.

        Returns:
          [size] int64; -1 for tokens that have no row in the other.
        """
        found = pc.fill_null(pc.index_in(self.tokens, value_set=other.tokens), -1)
        mapping: npt.NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
        return mapping


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
    tokens, counts = _representable(tokens, counts)
    order = pc.sort_indices(
        pa.table({"count": counts, "token": tokens}), [("count", "descending"), ("token", "ascending")]
    ).to_numpy()
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


def _representable(tokens: pa.Array, counts: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The tokens that a text vocabulary can hold, and their counts."""
    masks = [pc.match_substring(tokens, pattern).to_numpy(zero_copy_only=False) for pattern in _UNREPRESENTABLE]
    good = ~np.logical_or.reduce(masks)
    return (tokens, counts) if good.all() else (tokens.filter(pa.array(good)), counts[good])


def save_vocabulary(vocabulary: Vocabulary, folder: str | os.PathLike[str], *, open_file: _OpenFile = open) -> None:
    """Write the three files of a vocabulary into a folder that exists; equal vocabularies give equal bytes.

    Args:
      vocabulary: what to write.
      folder: where to.
      open_file: opens a path, `open` by default; give another for remote file systems.
    """
    counts = io.BytesIO()
    np.save(counts, vocabulary.counts, allow_pickle=False)
    description = {
        "name": vocabulary.name,
        "digest": vocabulary.digest,
        "counts_digest": hashlib.sha256(counts.getvalue()).hexdigest(),
        "size": len(vocabulary),
        "coverage": vocabulary.coverage,
        **{key: getattr(vocabulary, key) for key in _PLAIN},
        "features": {name: dataclasses.asdict(summary) for name, summary in sorted(vocabulary.features.items())},
    }
    text = json.dumps(description, indent=2, sort_keys=True) + "\n"
    for suffix, data in ((".txt", vocabulary.plain_text()), (".counts.npy", counts.getvalue()), (".json", text)):
        with open_file(os.path.join(folder, vocabulary.name + suffix), "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())


def load_vocabulary(folder: str | os.PathLike[str], name: str, *, open_file: _OpenFile = open) -> Vocabulary:
    """Read what `save_vocabulary` wrote, and verify it.

    Args:
      folder: where the three files are.
      name: name of the vocabulary.
      open_file: opens a path, `open` by default; give another for remote file systems.

    Raises:
      VocabularyError: a file is missing, damaged, or of another vocabulary.
    """
    try:
        description = json.loads(_read(folder, name + ".json", open_file))
        text = _read(folder, name + ".txt", open_file)
        counts = _read(folder, name + ".counts.npy", open_file)
        _verify(folder, name, description, text, counts)
        return Vocabulary(
            name=name,
            tokens=_tokens_from_text(text),
            counts=np.load(io.BytesIO(counts), allow_pickle=False),
            features={key: _summary_from_json(value) for key, value in description["features"].items()},
            **{key: description[key] for key in _PLAIN},
        )
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise VocabularyError(
            f"`{name}.json` in {os.fspath(folder)!r} does not describe a vocabulary: {error!r}; make it again."
        ) from error


def _read(folder: str | os.PathLike[str], file_name: str, open_file: _OpenFile) -> bytes:
    try:
        with open_file(os.path.join(folder, file_name), "rb") as file:
            data: bytes = file.read()
            return data
    except FileNotFoundError as error:
        raise VocabularyError(
            f"{os.fspath(folder)!r} has no file {file_name!r}: a vocabulary is `<name>.txt`, `<name>.counts.npy` and "
            "`<name>.json`; copy all three, or make the vocabulary again."
        ) from error


def _verify(
    folder: str | os.PathLike[str], name: str, description: Mapping[str, Any], text: bytes, counts: bytes
) -> None:
    found = {"name": name, "size": text.count(b"\n")}
    found |= {"digest": hashlib.sha256(text).hexdigest(), "counts_digest": hashlib.sha256(counts).hexdigest()}
    for key, value in found.items():
        if description[key] != value:
            raise VocabularyError(
                f"vocabulary {name!r} in {os.fspath(folder)!r}: its `{key}` is {value!r}, but {description[key]!r} was "
                "written: its files were changed or damaged; restore them, or make the vocabulary again."
            )


def _tokens_from_text(text: bytes) -> pa.Array:
    """The lines of a plain token file as a large_binary array."""
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    offsets = np.concatenate([[0], ends - np.arange(len(ends))]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[data != ord("\n")])]
    return pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)


def _summary_from_json(data: Mapping[str, Any]) -> FeatureSummary:
    return FeatureSummary(**{**data, "column": ColumnConfig(**data["column"])})


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
      VocabularyError: a file is missing or damaged, or the folder holds no vocabulary.
    """
    names = sorted(name.removesuffix(".json") for name in list_folder(folder) if name.endswith(".json"))
    if not names:
        raise VocabularyError(f"{os.fspath(folder)!r} holds no vocabulary: there is no `<name>.json` in it.")
    return {name: load_vocabulary(folder, name, open_file=open_file) for name in names}

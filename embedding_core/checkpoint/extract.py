"""Exports a table of an embedding checkpoint to Parquet, or to TensorBoard's embedding projector."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embedding_core.checkpoint.bundle import SLICE_BYTES, BundleReader, Rows
from embedding_core.checkpoint.checkpoint_manifest import BUNDLE, verify
from embedding_core.checkpoint.remap import checkpoint_vocabularies
from embedding_core.checkpoint.summary import name_of_row
from embedding_core.config import TableConfig
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.storage import StrPath, whole_file, whole_folder
from embedding_core.vocabulary import Vocabulary


class _Source:
    """A verified checkpoint, and one table of it."""

    def __init__(self, folder: StrPath, table: str, slice_bytes: int) -> None:
        self.folder = os.fspath(folder)
        manifest = verify(self.folder)
        tables = {each.name: each for each in manifest.config.tables}
        if table not in tables:
            raise ConfigError(f"{table!r} is not a table of {self.folder!r}: its tables are {sorted(tables)}.")
        self.table: TableConfig = tables[table]
        self.vocabularies: dict[str, Vocabulary] = checkpoint_vocabularies(self.folder, manifest)
        self._slice_bytes = slice_bytes

    @property
    def vocabulary(self) -> Vocabulary | None:
        return None if self.table.vocabulary is None else self.vocabularies[self.table.vocabulary]

    def slices(self) -> Iterator[tuple[int, Rows]]:
        return BundleReader(os.path.join(self.folder, BUNDLE)).slices(self.table.name, self._slice_bytes)


def extract_to_parquet(folder: StrPath, table: str, path: StrPath, *, slice_bytes: int = SLICE_BYTES) -> int:
    """Write a table as a Parquet file with columns `row`, `token`, `count` and `vector`, one slice at a time.

    `token` is text, or bytes if any token is not UTF-8, or the sha256 of the token if the vocabulary is private. In
    rows that have no token, `token` and `count` are null.

    Args:
      folder: the embedding checkpoint; its files are verified first.
      table: name of the table.
      path: the file to write; an existing file is replaced by one rename.
      slice_bytes: bytes of the table held in memory at once.

    Returns:
      The number of rows written.

    Raises:
      ConfigError: there is no such table.
      CheckpointError: a file of the checkpoint is damaged, or the file cannot be written.
    """
    source = _Source(folder, table, slice_bytes)
    token_type = _token_type(source.vocabulary)
    schema = pa.schema(
        [("row", pa.int64()), ("token", token_type), ("count", pa.int64()), ("vector", pa.list_(pa.float32()))]
    )
    written = 0
    try:
        with whole_file(path) as half, pq.ParquetWriter(half, schema) as writer:
            for start, rows in source.slices():
                writer.write_table(_arrow(source.vocabulary, start, rows, schema))
                written += len(rows)
    except OSError as error:
        raise CheckpointError(
            f"{os.fspath(path)!r} cannot be written ({error}): make room, or write elsewhere."
        ) from error
    return written


def _token_type(vocabulary: Vocabulary | None) -> pa.DataType:
    if vocabulary is None or vocabulary.private:
        return pa.string()
    try:
        vocabulary.tokens.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.binary()
    return pa.string()


def _arrow(vocabulary: Vocabulary | None, start: int, rows: Rows, schema: pa.Schema) -> pa.Table:
    numbers = np.arange(start, start + len(rows))
    tokens: list[bytes | str] = []
    counts: list[int] = []
    if vocabulary is not None:
        tokens = vocabulary.tokens.slice(start, len(rows)).to_pylist()
        counts = vocabulary.counts[start : start + len(rows)].tolist()
    if vocabulary is not None and vocabulary.private:
        tokens = [hashlib.sha256(token).hexdigest() for token in tokens if isinstance(token, bytes)]
    none = [None] * (len(rows) - len(tokens))
    token_type = schema.field("token").type
    token_array = pa.array([*tokens, *none], pa.binary() if tokens and isinstance(tokens[0], bytes) else token_type)
    offsets = pa.array(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32))
    vectors = pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(rows).reshape(-1)))
    columns = [pa.array(numbers), token_array.cast(token_type), pa.array([*counts, *none], pa.int64()), vectors]
    return pa.table(columns, schema=schema)


def extract_to_projector(
    folder: StrPath,
    table: str,
    destination: StrPath,
    *,
    limit: int = 10_000,
    slice_bytes: int = SLICE_BYTES,
) -> int:
    """Write the rows of a table's most frequent tokens, or the first rows of raw ids, for TensorBoard's projector.

    ``tensorboard --logdir <destination>`` shows them. The folder gets `vectors.tsv`, `metadata.tsv` (token and count)
    and `projector_config.pbtxt`.

    Args:
      folder: the embedding checkpoint; its files are verified first.
      table: name of the table.
      destination: the folder to make.
      limit: largest number of rows; a browser can show about ten thousand.
      slice_bytes: bytes of the table held in memory at once.

    Returns:
      The number of rows written.

    Raises:
      ConfigError: there is no such table.
      CheckpointError: a file of the checkpoint is damaged, or the destination holds files or cannot be written.
    """
    source = _Source(folder, table, slice_bytes)
    counts = () if source.vocabulary is None else source.vocabulary.counts
    chosen = _most_frequent(source, limit)
    with whole_folder(destination) as temporary:
        with (
            open(os.path.join(temporary, "vectors.tsv"), "w", encoding="utf-8") as vectors,
            open(os.path.join(temporary, "metadata.tsv"), "w", encoding="utf-8") as metadata,
        ):
            metadata.write("token\tcount\n")
            for start, rows in source.slices():
                for row in chosen[(chosen >= start) & (chosen < start + len(rows))].tolist():
                    vectors.write("\t".join(f"{value:.9g}" for value in rows[row - start]) + "\n")
                    token = name_of_row(source.table, source.vocabularies, row)
                    metadata.write(f"{token}\t{counts[row] if row < len(counts) else ''}\n")
        with open(os.path.join(temporary, "projector_config.pbtxt"), "w", encoding="utf-8") as config:
            config.write(
                f'embeddings {{\n  tensor_name: "{table}"\n  tensor_path: "vectors.tsv"\n'
                '  metadata_path: "metadata.tsv"\n}\n'
            )
    return len(chosen)


def _most_frequent(source: _Source, limit: int) -> npt.NDArray[np.int64]:
    """Return the rows of the most frequent tokens, ascending; in an evolved vocabulary these need not come first."""
    counts = np.full(source.table.vocabulary_size, -1, np.int64)
    if source.vocabulary is not None:
        counts[: len(source.vocabulary)] = source.vocabulary.counts
    return np.sort(np.argsort(-counts, kind="stable")[:limit])

"""Summarizes a checkpoint's tables, and extracts single rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embedding_core.checkpoint.bundle import SLICE_BYTES, BundleReader, Rows
from embedding_core.checkpoint.checkpoint_manifest import BUNDLE, Manifest, table_keys, table_shapes, verify
from embedding_core.checkpoint.remap import checkpoint_vocabularies
from embedding_core.checkpoint.row_sources import aligned, row_sources
from embedding_core.config import TableConfig
from embedding_core.display import shown_token
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.schema import Json
from embedding_core.storage import StrPath, whole_file, whole_folder
from embedding_core.vocabulary import Vocabulary

_SHOWN = 10
_Vocabularies = Mapping[str, Vocabulary]


def name_of_row(table: TableConfig, vocabularies: _Vocabularies, row: int) -> str:
    """Name a row for people: by its token, or the first 12 digits of its sha256 if the vocabulary is private."""
    if table.vocabulary is None:
        return f"id {row}"
    vocabulary = vocabularies[table.vocabulary]
    if row >= len(vocabulary):
        return f"out of vocabulary {row - len(vocabulary)}"
    token: bytes = vocabulary.tokens[row].as_py()
    return shown_token(token, private=vocabulary.private)


def summarize_checkpoint(folder: StrPath, slice_bytes: int = SLICE_BYTES) -> Json:
    """Verify an embedding checkpoint and describe it, as a JSON object.

    Returns:
      "step"; "bytes" and "files" (with sha256); and per table "rows", "dim", "optimizer", "slots", "bytes" (with
      slots), "vocabulary", "digest", "oov_rows", "norm" (least, mean and greatest L2 norm of a finite row; null if no
      row is finite), "nonfinite_rows" (of the table or a slot) and "dead_rows" (rows whose slots all have their
      initial value because no gradient ever reached them; null if the optimizer has no slots).

    Raises:
      CheckpointError: a file is missing or damaged.
    """
    folder = os.fspath(folder)
    manifest = verify(folder)
    reader = BundleReader(os.path.join(folder, BUNDLE))
    return {
        "folder": folder,
        "step": manifest.step,
        "bytes": sum(file["size"] for file in manifest.files.values()),
        "files": {name: dict(file) for name, file in manifest.files.items()},
        "tables": {table.name: _summary(table, manifest, reader, slice_bytes) for table in manifest.config.tables},
    }


def _summary(table: TableConfig, manifest: Manifest, reader: BundleReader, slice_bytes: int) -> Json:
    slots = table.optimizer.slots if table.optimizer else ()
    keys, shape = table_keys(table), table_shapes(manifest.config)[table.name]
    least, total, greatest, dead, bad, lengths = np.inf, 0.0, 0.0, 0, 0, 0
    for rows, *own in zip(*(reader.slices(key, slice_bytes) for key in keys), strict=True):
        finite = [np.isfinite(part).all(axis=1) for _, part in (rows, *own)]
        norms = np.linalg.norm(rows[1][finite[0]].astype(np.float64), axis=1)
        least, greatest = min(least, norms.min(initial=np.inf)), max(greatest, norms.max(initial=0.0))
        total, lengths = total + norms.sum(), lengths + len(norms)
        bad += int((~np.logical_and.reduce(finite)).sum())
        if slots:
            first = [(part == np.float32(slot.initial)).all(axis=1) for (_, part), slot in zip(own, slots, strict=True)]
            dead += int(np.logical_and.reduce(first).sum())
    return {
        "rows": shape[0],
        "dim": shape[1],
        "optimizer": repr(table.optimizer) if table.optimizer else None,
        "slots": [slot.name for slot in slots],
        "bytes": 4 * shape[0] * shape[1] * len(keys),
        "vocabulary": table.vocabulary,
        "digest": manifest.vocabularies.get(table.vocabulary or ""),
        "oov_rows": table.oov_rows,
        "norm": {"least": float(least), "mean": float(total / lengths), "greatest": float(greatest)}
        if lengths
        else None,
        "nonfinite_rows": bad,
        "dead_rows": dead if slots else None,
    }


def compare_checkpoints(earlier: StrPath, later: StrPath, slice_bytes: int = SLICE_BYTES) -> Json:
    """Compare two embedding checkpoints row by row, by token, as a JSON object.

    Returns:
      "steps"; "only_in_earlier" and "only_in_later" (tables); and for each table that both have, either "incomparable"
      (the reason), or "rows" (in both), "rows_only_in_earlier", "rows_only_in_later", "changed_rows",
      "largest_difference" (of one number), "mean_distance" (between rows; 0 for a pair that is not finite),
      "moved_most" (rows and how far), and "same_vocabulary".

    Raises:
      CheckpointError: a file of one of them is missing or damaged.
    """
    folders = [os.fspath(earlier), os.fspath(later)]
    manifests = [verify(folder) for folder in folders]
    readers = [BundleReader(os.path.join(folder, BUNDLE)) for folder in folders]
    vocabularies = [checkpoint_vocabularies(*pair) for pair in zip(folders, manifests, strict=True)]
    old, new = ({table.name: table for table in manifest.config.tables} for manifest in manifests)
    tables: Json = {}
    for name in sorted(old.keys() & new.keys()):
        try:
            tables[name] = _compared(old[name], new[name], readers, vocabularies, slice_bytes)
        except CheckpointError as error:
            tables[name] = {"incomparable": str(error)}
    return {
        "steps": [manifest.step for manifest in manifests],
        "only_in_earlier": sorted(old.keys() - new.keys()),
        "only_in_later": sorted(new.keys() - old.keys()),
        "tables": tables,
    }


def _compared(
    old: TableConfig,
    new: TableConfig,
    readers: list[BundleReader],
    vocabularies: list[dict[str, Vocabulary]],
    slice_bytes: int,
) -> Json:
    if old.dim != new.dim:
        raise CheckpointError(f"`dim` is {old.dim} and {new.dim}")
    sources = row_sources(new, old, vocabularies[1], vocabularies[0])
    distances = np.zeros(len(sources.rows))
    largest, changed = 0.0, 0
    for start, before, after in _pairs(sources.rows, old, readers, slice_bytes):
        both = sources.rows[start : start + len(after)] >= 0
        changed += int((after[both].view(np.uint32) != before[both].view(np.uint32)).any(axis=1).sum())
        both &= np.isfinite(after).all(axis=1) & np.isfinite(before).all(axis=1)
        difference = np.abs(after[both].astype(np.float64) - before[both])
        distances[start : start + len(after)][both] = np.linalg.norm(difference, axis=1)
        largest = max(largest, float(difference.max(initial=0.0)))
    both = sources.rows >= 0
    most = np.argsort(-distances, kind="stable")[:_SHOWN]
    old_tokens, new_tokens = sources.earlier, sources.vocabulary  # an empty vocabulary is false
    return {
        "rows": int(both.sum()),
        "rows_only_in_earlier": old.vocabulary_size - len(np.unique(sources.rows[both])),
        "rows_only_in_later": int((~both).sum()),
        "changed_rows": changed,
        "largest_difference": largest,
        "mean_distance": float(distances[both].mean()) if both.any() else 0.0,
        "moved_most": [
            {"row": name_of_row(new, vocabularies[1], int(row)), "distance": float(distances[row])}
            for row in most
            if distances[row] > 0
        ],
        "same_vocabulary": old_tokens is None or new_tokens is None or old_tokens.digest == new_tokens.digest,
    }


def _pairs(
    sources: npt.NDArray[np.int64], table: TableConfig, readers: list[BundleReader], slice_bytes: int
) -> Iterator[tuple[int, Rows, Rows]]:
    """Yield (first row's number, earlier rows in the order of the later ones, later rows); new rows get zeros."""
    earlier = aligned(readers[0].slices(table.name, slice_bytes), sources, table, slice_bytes)
    for (start, before), (_, after) in zip(earlier, readers[1].slices(table.name, slice_bytes), strict=True):
        yield start, before, after


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

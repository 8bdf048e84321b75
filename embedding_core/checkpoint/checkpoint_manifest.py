"""Writes, reads and verifies the manifest of an embedding checkpoint."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.schema import Json
from embedding_core.storage import FileDigest, SealedFolder, StrPath

BUNDLE = "tables"  # prefix of the tensor bundle in the folder
VOCABULARIES = "vocabularies"  # folder of the vocabularies that the rows belong to
_SEALED = SealedFolder(constants={"format": "embedding-checkpoint", "version": 1})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of an embedding checkpoint's manifest.

    Attributes:
      step: training step at which the tables were saved.
      config: tables, features and optimizers; the shapes of all tables and slots follow from it.
      vocabularies: digest of each vocabulary that rows belong to, by name.
      nonfinite_rows: number of rows with a NaN or an infinity, by name of each table or slot that has any.
      files: digest of every file but the manifest.
    """

    step: int
    config: EmbeddingConfig
    vocabularies: Mapping[str, str]
    nonfinite_rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    files: Mapping[str, FileDigest] = dataclasses.field(default_factory=dict)


def table_shapes(config: EmbeddingConfig) -> dict[str, tuple[int, int]]:
    """Compute the shape of every table, by `<table>`, and of every slot, by `<table>/<slot>`; all are float32."""
    return {key: (table.vocabulary_size, table.dim) for table in config.tables for key in table_keys(table)}


def table_keys(table: TableConfig) -> list[str]:
    """Return the keys of a table and its slots: `<table>`, and `<table>/<slot>` of each."""
    return [table.name, *(f"{table.name}/{slot.name}" for slot in (table.optimizer.slots if table.optimizer else ()))]


def write_manifest(folder: str, manifest: Manifest) -> None:
    """Write the manifest, with the digests of the files that the folder holds now."""
    shapes = {key: {"shape": list(shape), "dtype": "float32"} for key, shape in table_shapes(manifest.config).items()}
    body = {
        "step": manifest.step,
        "tensors": shapes,
        "vocabularies": dict(manifest.vocabularies),
        "nonfinite_rows": dict(manifest.nonfinite_rows),
        "embedding_config": json.loads(manifest.config.to_json()),
    }
    _SEALED.write(folder, body)


def read_manifest(folder: StrPath) -> Manifest:
    """Read the manifest of an embedding checkpoint, but no other file.

    Raises:
      CheckpointError: the manifest is missing, damaged, or of another format.
    """
    return _manifest(folder, _SEALED.read(folder))


def verify(folder: StrPath) -> Manifest:
    """Read the manifest of an embedding checkpoint, and compare every file with it.

    Raises:
      CheckpointError: the manifest or a file is missing or damaged.
    """
    return _manifest(folder, _SEALED.verify(folder))


def _manifest(folder: StrPath, body: Json) -> Manifest:
    try:
        return Manifest(
            step=body["step"],
            config=EmbeddingConfig.from_json(json.dumps(body["embedding_config"])),
            vocabularies=body["vocabularies"],
            nonfinite_rows=body["nonfinite_rows"],
            files=body["files"],
        )
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(
            f"the manifest of {os.fspath(folder)!r} is damaged ({error}): take another checkpoint."
        ) from error

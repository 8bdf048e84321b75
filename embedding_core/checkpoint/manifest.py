"""`manifest.json` of an embedding checkpoint: what is in it, of which vocabularies, and a digest of every file."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping

from embedding_core.checkpoint.sealed import MANIFEST, FileDigests, check_files, read_seal, write_seal
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import CheckpointError, ConfigError

__all__ = ["BUNDLE", "VOCABULARIES", "Manifest", "read_manifest", "table_shapes", "verify", "write_manifest"]

BUNDLE = "tables"  # prefix of the tensor bundle in the folder
VOCABULARIES = "vocabularies"  # folder of the vocabularies that the rows belong to
FORMAT = "embedding-checkpoint"
VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an embedding checkpoint says of itself.

    Attributes:
      step: training step that the tables were taken at.
      config: tables, features and optimizers; the shapes of all tables and slots follow from it.
      vocabularies: per vocabulary the digest of the tokens that its tables' rows belong to.
      nonfinite_rows: per table or slot (only those that have any) the rows holding a NaN or an infinity.
      files: per file its `size` in bytes and `sha256`.
    """

    step: int
    config: EmbeddingConfig
    vocabularies: Mapping[str, str]
    nonfinite_rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    files: FileDigests = dataclasses.field(default_factory=dict)


def table_shapes(config: EmbeddingConfig) -> dict[str, tuple[int, int]]:
    """The shape of every table, under its name, and slot, under `<table>/<slot>`; all are float32."""
    shapes = {}
    for table in config.tables:
        names = [
            table.name,
            *(f"{table.name}/{slot.name}" for slot in (table.optimizer.slots if table.optimizer else ())),
        ]
        shapes.update(dict.fromkeys(names, (table.vocabulary_size, table.dim)))
    return shapes


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
    write_seal(folder, FORMAT, VERSION, body)


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of the checkpoint in that folder; the other files are not looked at.

    Raises:
      CheckpointError: there is none, it is damaged, or of a later format.
    """
    folder = os.fspath(folder)
    body = read_seal(folder, FORMAT, VERSION)
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
            f"{os.path.join(folder, MANIFEST)!r} is damaged ({error}): take another checkpoint."
        ) from error


def verify(folder: str | os.PathLike[str]) -> Manifest:
    """Read the manifest and compare every file with it.

    Raises:
      CheckpointError: a file is missing, of another size, or of another digest; or the manifest is damaged.
    """
    manifest = read_manifest(folder)
    check_files(os.fspath(folder), manifest.files)
    return manifest

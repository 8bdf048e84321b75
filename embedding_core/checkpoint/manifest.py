"""`manifest.json` of an embedding checkpoint: what is in it, of which vocabularies, and a digest of every file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import CheckpointError, ConfigError

__all__ = [
    "BUNDLE",
    "MANIFEST",
    "VOCABULARIES",
    "Manifest",
    "read_manifest",
    "table_shapes",
    "verify",
    "write_manifest",
]

MANIFEST = "manifest.json"
BUNDLE = "tables"  # prefix of the tensor bundle in the folder
VOCABULARIES = "vocabularies"  # folder of the vocabularies that the rows belong to
FORMAT = "embedding-checkpoint"
VERSION = 1
_CHUNK = 4 * 2**20


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
    files: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


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


def _file_digests(folder: str) -> dict[str, dict[str, Any]]:
    """Size and sha256 of every file under the folder, by its path in there; the manifest itself left out."""
    paths = [os.path.join(parent, name) for parent, _, names in tf.io.gfile.walk(folder) for name in names]
    names = sorted(os.path.relpath(path, folder) for path in paths)
    return {name: _digest(os.path.join(folder, name)) for name in names if name != MANIFEST}


def _digest(path: str) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


def write_manifest(folder: str, manifest: Manifest) -> None:
    """Write the manifest, with the digests of the files that the folder holds now."""
    shapes = {key: {"shape": list(shape), "dtype": "float32"} for key, shape in table_shapes(manifest.config).items()}
    body = {
        "format": FORMAT,
        "version": VERSION,
        "step": manifest.step,
        "tensors": shapes,
        "vocabularies": dict(manifest.vocabularies),
        "nonfinite_rows": dict(manifest.nonfinite_rows),
        "embedding_config": json.loads(manifest.config.to_json()),
        "files": _file_digests(folder),
    }
    with tf.io.gfile.GFile(os.path.join(folder, MANIFEST), "wb") as file:
        file.write(json.dumps({**body, "sha256": _body_digest(body)}, indent=2))


def _body_digest(body: Mapping[str, Any]) -> str:
    """Of the manifest itself, so that a damaged one is not believed."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of the checkpoint in that folder; the other files are not looked at.

    Raises:
      CheckpointError: there is none, it is damaged, or of a later format.
    """
    path = os.path.join(os.fspath(folder), MANIFEST)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            body = json.loads(file.read())
        told = body.pop("sha256")
        if body["format"] != FORMAT or told != _body_digest(body):
            raise ValueError("its digest is another")
        if body["version"] != VERSION:
            raise CheckpointError(f"{path!r} is of format version {body['version']!r}: this release reads {VERSION}.")
        return Manifest(
            step=body["step"],
            config=EmbeddingConfig.from_json(json.dumps(body["embedding_config"])),
            vocabularies=body["vocabularies"],
            nonfinite_rows=body["nonfinite_rows"],
            files=body["files"],
        )
    except tf.errors.NotFoundError as error:
        raise CheckpointError(f"{path!r} does not exist: the folder holds no complete checkpoint.") from error
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError, tf.errors.OpError) as error:
        raise CheckpointError(f"{path!r} is damaged ({error}): take another checkpoint.") from error


def verify(folder: str | os.PathLike[str]) -> Manifest:
    """Read the manifest and compare every file with it.

    Raises:
      CheckpointError: a file is missing, of another size, or of another digest; or the manifest is damaged.
    """
    folder = os.fspath(folder)
    manifest = read_manifest(folder)
    for name, told in manifest.files.items():
        path = os.path.join(folder, name)
        try:
            found = _digest(path)
        except tf.errors.OpError as error:
            raise CheckpointError(f"{path!r} cannot be read ({error.message}): take another checkpoint.") from error
        if found != told:
            raise CheckpointError(
                f"{path!r} has {found['size']} bytes of sha256 {found['sha256'][:12]}..., its manifest says "
                f"{told['size']} of {told['sha256'][:12]}...: the file is damaged; take another checkpoint."
            )
    return manifest

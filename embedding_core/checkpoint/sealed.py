"""`manifest.json`, which seals a folder: size and sha256 of every file in it, and a digest of itself."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.errors import CheckpointError
from embedding_core.storage import digest_of
from embedding_core.storage.seals import SEAL, json_digest

__all__ = ["MANIFEST", "FileDigests", "check_files", "file_digest", "folder_digests", "read_seal", "write_seal"]

MANIFEST = "manifest.json"
FileDigests: TypeAlias = Mapping[str, Mapping[str, Any]]


def write_seal(folder: str, kind: str, version: int, body: Mapping[str, Any]) -> None:
    """Write the manifest, with the digests of the files that the folder holds now.

    Args:
      folder: what to seal.
      kind: of checkpoint, in words.
      version: of its format.
      body: a JSON object: what else the manifest says.
    """
    whole = {"format": kind, "version": version, **body, "files": folder_digests(folder)}
    with tf.io.gfile.GFile(os.path.join(folder, MANIFEST), "wb") as file:
        file.write(json.dumps({**whole, SEAL: json_digest(whole)}, indent=2))


def read_seal(folder: str, kind: str, version: int) -> dict[str, Any]:
    """The manifest of a folder; the other files are not looked at.

    Raises:
      CheckpointError: there is none, it is damaged, of another kind, or of another version.
    """
    path = os.path.join(folder, MANIFEST)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            body = json.loads(file.read())
        recorded = body.pop(SEAL)
        if recorded != json_digest(body):
            raise ValueError("its digest is another")
        if body["format"] != kind:
            raise CheckpointError(f"{path!r} is of {body['format']!r}, not of {kind!r}: give a folder of that kind.")
        if body["version"] != version:
            raise CheckpointError(f"{path!r} is of format version {body['version']!r}: this release reads {version}.")
        return dict(body)
    except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError) as error:  # the latter where it is no folder
        raise CheckpointError(
            f"{path!r} does not exist: the folder holds no complete checkpoint; name one that does."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, tf.errors.OpError) as error:
        raise CheckpointError(f"{path!r} is damaged ({error}): take another checkpoint.") from error


def check_files(folder: str, files: FileDigests) -> None:
    """Compare every file with what the manifest says of it.

    Raises:
      CheckpointError: a file is missing, of another size, or of another digest.
    """
    for name, recorded in files.items():
        path = os.path.join(folder, name)
        try:
            found = file_digest(path)
        except tf.errors.OpError as error:
            raise CheckpointError(f"{path!r} cannot be read ({error.message}): take another checkpoint.") from error
        if found != recorded:
            raise CheckpointError(
                f"{path!r} has {found['size']} bytes of sha256 {found['sha256'][:12]}..., its manifest says "
                f"{recorded['size']} of {recorded['sha256'][:12]}...: the file is damaged; take another checkpoint."
            )


def folder_digests(folder: str) -> dict[str, dict[str, Any]]:
    """`file_digest` of every file under the folder, by its path in there; the manifest itself left out."""
    paths = [os.path.join(parent, name) for parent, _, names in tf.io.gfile.walk(folder) for name in names]
    names = sorted(os.path.relpath(path, folder) for path in paths)
    return {name: file_digest(os.path.join(folder, name)) for name in names if name != MANIFEST}


def file_digest(path: str) -> dict[str, Any]:
    """The `size` and `sha256` of a file on any file system of TensorFlow, read in blocks."""
    with tf.io.gfile.GFile(path, "rb") as file:
        size, digest = digest_of(file)
    return {"size": size, "sha256": digest}

"""Lists, reads and verifies what is served, wherever it is, and recognizes a version whose record was lost."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.pusher.manifest import MANIFEST, verify_manifest
from components.pusher.publish import Publication, versions
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.storage.seals import json_digest

__all__ = ["damage_of", "find_published", "identity_of", "manifest_facts", "served_versions", "verify_version"]


def served_versions(base: str) -> list[int]:
    """The numbers in the folder, or at the address, of versions, the oldest first; none if it is not there."""
    if "://" not in base:
        return versions(base) if os.path.isdir(base) else []
    from components.pusher.remote import remote_versions  # it loads TensorFlow

    return remote_versions(base)


def manifest_facts(destination: str, version: int) -> Mapping[str, Any]:
    """What the manifest of a version says besides its files.

    Raises:
      ConfigError: it cannot be read.
    """
    path = os.path.join(destination, str(version), MANIFEST)
    try:
        facts: Mapping[str, Any] = json.loads(_remote_text(path) if "://" in path else _text(path))["facts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path!r} cannot be read ({error}): it says which training is served; publish the model again, or name "
            'the base by "pushed" or its address.'
        ) from error
    return facts


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _remote_text(path: str) -> str:
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path) as file:
            return str(file.read())
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


def verify_version(path: str) -> dict[str, Any]:
    """Check every file of a published version against its manifest, also at an address; returns the manifest.

    Raises:
      CheckpointError: as `components.pusher.manifest.verify_manifest`.
    """
    if "://" not in path:
        return verify_manifest(path)
    from components.pusher.remote import verify_remotely  # it loads TensorFlow

    return verify_remotely(path)


def damage_of(base: str, version: int, digest: str | None = None) -> str | None:
    """Say what is wrong with a version that is served; None if it is as published.

    Args:
      base: folder or address of the versions.
      version: its number.
      digest: of its content, as the push recorded it; another model under that number is wrong too.
    """
    path = posixpath.join(base, str(version))
    try:
        found = verify_version(path)["digest"]
    except CheckpointError as error:
        return str(error)
    if digest is not None and found != digest:
        return f"{path!r} is not the model that was pushed: its digest is {found[:12]}..., not {digest[:12]}..."
    return None


def identity_of(sources: Mapping[str, Any], settings: Mapping[str, Any], model: str) -> str:
    """A digest of what makes two pushes the same one.

    Args:
      sources: URIs of what the model was made of.
      settings: what decides how it is exported and proven.
      model: folder of the evaluated SavedModel; its files count, because a URI is used again if metadata is lost.
    """
    from embedding_core.checkpoint.sealed import folder_digests  # it loads TensorFlow

    return json_digest({"sources": sources, "settings": settings, "model": folder_digests(model)})


def find_published(base: str, identity: str) -> tuple[Publication, dict[str, Any]] | None:
    """The newest version, with its facts, if it is already of that identity and as it was published.

    That is a version whose pusher died, or whose disk was full, before it was recorded: pushing it again would serve
    a second copy, and leave the first one without a record.
    """
    newest = max(served_versions(base), default=None)
    if newest is None:
        return None
    path = posixpath.join(base, str(newest)) if "://" in base else str(Path(base).absolute() / str(newest))
    try:
        manifest = verify_version(path)
    except CheckpointError:
        return None
    if manifest["facts"].get("identity") != identity:
        return None
    return Publication(newest, path, manifest["digest"]), manifest["facts"]

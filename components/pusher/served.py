"""Lists, reads and verifies served versions, local or in an object store; finds one whose push was not recorded."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from components.pusher.version_manifest import read_facts, verify_version
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.schema import Json
from embedding_core.storage import FileDigest, StrPath, is_remote, json_digest, names_in


@dataclasses.dataclass(frozen=True)
class Publication:
    """A published version: its number, its path and the digest of its content; and the number of the delta pushed.

    `delta` is 0 if the version itself was pushed.
    """

    version: int
    path: str
    digest: str
    delta: int = 0


def number_names(base: StrPath) -> list[str]:
    """List the names in a folder, local or in an object store, that are numbers; not all of them need be versions.

    Returns:
      The names, unsorted; none if the folder does not exist.
    """
    return [name for name in names_in(base) if name.isascii() and name.isdigit()]


def served_versions(base: StrPath) -> list[int]:
    """List the numbers among the names in a folder of versions, ascending; none if the folder does not exist."""
    return sorted({int(name) for name in number_names(base)})


def manifest_facts(destination: str, version: int) -> Json:
    """Read the facts in the manifest of a version.

    Raises:
      ConfigError: the manifest cannot be read.
    """
    path = os.path.join(destination, str(version))
    try:
        return read_facts(path)
    except (CheckpointError, KeyError) as error:
        raise ConfigError(
            f"the manifest of {path!r} cannot be read ({error}): it says which training is served; publish the model "
            'again, or name the base by "pushed" or its address.'
        ) from error


def damage_of(base: str, version: int, digest: str | None = None) -> str | None:
    """Return what is wrong with a served version, or None if it is as published.

    Args:
      base: folder or address of the versions.
      version: its number.
      digest: digest of its content that the push recorded, which the version must have; None skips this check.
    """
    path = os.path.join(base, str(version))
    try:
        content = verify_version(path)["digest"]
    except CheckpointError as error:
        return str(error)
    if digest is not None and content != digest:
        return f"{path!r} is not the model that was pushed: its digest is {content[:12]}..., not {digest[:12]}..."
    return None


def identity_of(sources: Json, settings: Json, model: Mapping[str, FileDigest]) -> str:
    """Compute a digest that is the same for two pushes of the same model.

    Args:
      sources: URIs of the artifacts that the model was made of.
      settings: settings of its export and comparison.
      model: digests of the files of the evaluated SavedModel. URIs are not enough: if the metadata store is lost, a new
        one gives other artifacts the same URIs.
    """
    return json_digest({"sources": sources, "settings": settings, "model": model})


def find_published(base: str, identity: str) -> tuple[Publication, Json] | None:
    """Return the newest version and its facts if it has that identity and is undamaged; else None.

    Such a version was published by a pusher that died, or whose disk was full, before it recorded the push. Pushing the
    model again would serve a second copy, and leave the first one unrecorded.
    """
    newest = max(served_versions(base), default=None)
    if newest is None:
        return None
    path = os.path.join(base if is_remote(base) else os.path.abspath(base), str(newest))
    try:
        manifest = verify_version(path)
    except CheckpointError:
        return None
    if manifest["facts"].get("identity") != identity:
        return None
    return Publication(newest, path, manifest["digest"]), manifest["facts"]

"""Lists, reads and verifies served versions and their manifests, local or in an object store."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.rooms import hooks
from embedding_core.schema import Json
from embedding_core.storage import (
    FileDigest,
    SealedFolder,
    StrPath,
    exists,
    file_digest,
    file_names_below,
    is_remote,
    json_digest,
    make_folders,
    names_in,
)

# Writes and verifies the manifest of a published model: the size and sha256 of every file, in the version folder.
#
# It is in ``assets.extra/``, the one folder of a SavedModel that TensorFlow leaves to others.

MANIFEST = "assets.extra/manifest.json"
MODEL = "saved_model.pb"
"""The file without which neither TensorFlow nor a server loads a version."""

_ADDED = "assets.extra/"
_SEALED = SealedFolder(
    manifest=MANIFEST,
    seal="seal",
    size="bytes",
    missing="name the folder of one published version, such as runs/x/serving/1790000000; if it is one, publish the "
    "model again",
    remedy="publish the model again",
)


def is_version(folder: StrPath) -> bool:
    """Return whether a folder, local or at an address, is a published version, complete or not."""
    return exists(os.path.join(folder, MODEL)) or exists(os.path.join(folder, MANIFEST))


def version_digests(folder: StrPath) -> dict[str, FileDigest]:
    """Compute the digests of all files of a model except the manifest.

    Raises:
      CheckpointError: there is a symbolic link, whose target is not part of the folder.
    """
    return {name: file_digest(os.path.join(folder, name)) for name in _file_names(folder)}


def model_digests(folder: StrPath) -> dict[str, FileDigest]:
    """Compute the digests of what a SavedModel computes with: all its files except those that a push adds.

    Raises:
      CheckpointError: as in `version_digests`.
    """
    files = version_digests(folder)
    return {name: digest for name, digest in files.items() if not name.startswith(_ADDED)}


def _file_names(folder: StrPath) -> list[str]:
    for path in Path(folder).rglob("*") if not is_remote(folder) else ():
        if path.is_symlink():
            raise CheckpointError(f"{str(path)!r} is a symbolic link: a model must hold its files itself; replace it.")
    return [name for name in file_names_below(folder) if name != MANIFEST]


def content_digest(files: Mapping[str, FileDigest]) -> str:
    """Compute one sha256 over the names and digests of all files: it is equal if and only if the contents are."""
    lines = "".join(f"{files[name]['sha256']}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def copy_model(source: StrPath, target: str) -> dict[str, FileDigest]:
    """Copy a model into an empty local folder, which is not replaced: it may be locked. Read it back.

    Args:
      source: folder of a SavedModel.
      target: an empty folder.

    Returns:
      The digests of the files.

    Raises:
      CheckpointError: what was written is not what was read.
    """
    files = {}
    for name in _file_names(source):
        make_folders(os.path.dirname(os.path.join(target, name)))
        files[name] = file_digest(os.path.join(source, name), copy_to=os.path.join(target, name))
    if files != version_digests(target):
        raise CheckpointError(
            f"the copy of {os.fspath(source)!r} is not what was read: check the disk, and push again."
        )
    return files


def write_manifest(folder: str, files: Mapping[str, FileDigest], facts: Json) -> str:
    """Write the manifest of a version.

    Args:
      folder: folder of the copied model.
      files: digests of its files.
      facts: JSON values that the manifest says besides the files (vocabularies, parity figures).

    Returns:
      The content digest.
    """
    digest = content_digest(files)
    _SEALED.write(folder, {"digest": digest, "facts": facts}, files)
    return digest


def read_facts(folder: StrPath) -> Json:
    """Read what the manifest of a version says besides its files, which are not verified.

    Raises:
      CheckpointError: the manifest is missing or damaged.
    """
    facts: Json = _SEALED.read(folder)["facts"]
    return facts


def verify_version(folder: StrPath) -> Json:
    """Read the manifest of a published version, local or at an address, and check every file against it.

    Returns:
      The manifest: `digest`, `facts` and `files`.

    Raises:
      CheckpointError: the manifest is missing or damaged, or a file is missing, damaged, a link or not listed there.
    """
    manifest = _SEALED.verify(folder, version_digests)
    if content_digest(manifest["files"]) != manifest.get("digest"):
        raise CheckpointError(
            f"{os.fspath(folder)!r} is damaged: `digest` of its manifest is not that of its files; publish the model "
            "again."
        )
    return manifest


# Lists, reads and verifies served versions, local or in an object store; finds one whose push was not recorded.


@dataclasses.dataclass(frozen=True)
class Publication:
    """A published version: its number, its path and the digest of its content; and the number of the update pushed.

    `update` is 0 if the version itself was pushed.
    """

    version: int
    path: str
    digest: str
    update: int = 0


def number_names(base: StrPath) -> list[str]:
    """List the names in a folder, local or in an object store, that are numbers; not all of them need be versions.

    Returns:
      The names, unsorted; none if the folder does not exist.
    """
    return [name for name in names_in(base) if is_number(name)]


def is_number(name: str) -> bool:
    """Return whether the name of a file or folder is a number."""
    return name.isascii() and name.isdigit()


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


class Updates:
    """The updates of versions: numbered changes beside a version, which servers take over while they run.

    Here no version has any. An optional room publishes them.

    Attributes:
      properties: properties of a PushedModel that say which update it is; a rollback copies them.
    """

    properties: Sequence[str] = ()

    def last(self, destination: StrPath, version: int) -> int:
        """Return the number of the last update that was published of a version, which may be missing; 0 if none was."""
        return 0

    def last_facts(self, destination: str, version: int) -> Json | None:
        """Read the facts about the push of a version's last update; None if it has none.

        Raises:
          CheckpointError: it is damaged.
        """
        return None

    def pushed(self, facts: Mapping[str, Any]) -> int:
        """Return the number of the update that a PushedModel with these properties is of; 0 if of a whole version."""
        return 0

    def read(self, folder: StrPath, facts: Json) -> list[Any]:
        """Read and verify the updates of the version in a folder, in order; each has the `facts` about its push.

        Args:
          folder: folder of the version.
          facts: the facts in its manifest.

        Raises:
          CheckpointError: one is missing or damaged, or is not based on the one before it.
        """
        return []

    def description(self, folder: StrPath, facts: Json) -> str:
        """Describe the updates of the version in a folder, which are verified as in `read`; "" if it has none."""
        return ""

    def write(self, destination: StrPath, version: int, updates: Sequence[Any]) -> None:
        """Write all updates of a version that has not been published yet; they appear together or not at all.

        Call it while the versions are locked (`before` of `publish`).
        """

    def move(self, root: str, version: str, hidden: str) -> None:
        """Move the updates of a version, if it has any, to the folder that is to be removed."""

    def remove_without_version(self, root: str) -> None:
        """Remove updates without a version: a rollback that died left them, or their version was removed by hand."""


def version_updates() -> Updates:
    """Return the updates of the optional room that publishes them; without such a room, no version has any."""
    return next((room.UPDATES for room in hooks("components", "updates")), Updates())


def served_facts(destination: str, version: int) -> Json:
    """Read the facts about the push of what a version serves: its last update, or the version itself.

    Raises:
      ConfigError: the version's manifest cannot be read.
      CheckpointError: its last update is damaged.
    """
    facts = version_updates().last_facts(destination, version)
    return manifest_facts(destination, version) if facts is None else facts


def damage_of(base: str, version: int, digest: str | None = None) -> str | None:
    """Return what is wrong with a served version or its updates, or None if they are as published.

    Args:
      base: folder or address of the versions.
      version: its number.
      digest: digest of its content that the push recorded, which the version must have; None skips this check.
    """
    path = os.path.join(base, str(version))
    try:
        manifest = verify_version(path)
        content = manifest["digest"]
        if digest is not None and content != digest:
            return f"{path!r} is not the model that was pushed: its digest is {content[:12]}..., not {digest[:12]}..."
        version_updates().read(path, manifest["facts"])
    except CheckpointError as error:
        return str(error)
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
    """Return the newest version, or its last update, and its facts if it has that identity and is undamaged; else None.

    Such a version was published by a pusher that died, or whose disk was full, before it recorded the push. Pushing the
    model again would serve a second copy, and leave the first one unrecorded.
    """
    newest = max(served_versions(base), default=None)
    if newest is None:
        return None
    path = os.path.join(base if is_remote(base) else os.path.abspath(base), str(newest))
    try:
        manifest = verify_version(path)
        updates = version_updates().read(path, manifest["facts"])
    except CheckpointError:
        return None
    facts = updates[-1].facts if updates else manifest["facts"]
    if facts.get("identity") != identity:
        return None
    return Publication(newest, path, manifest["digest"], len(updates)), facts

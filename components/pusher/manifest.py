"""The manifest of a published model: the sha256 and size of every file, kept inside the version folder.

It sits in ``assets.extra/``, the one folder of a SavedModel that TensorFlow leaves to others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from embedding_core.errors import CheckpointError
from embedding_core.storage.seals import json_digest

__all__ = [
    "MANIFEST",
    "MODEL",
    "content_digest",
    "copy_files",
    "file_digests",
    "is_version",
    "verified",
    "verify_manifest",
    "write_manifest",
]

MANIFEST = "assets.extra/manifest.json"
MODEL = "saved_model.pb"
"""The file without which neither TensorFlow nor a server loads a version."""

_BLOCK = 1 << 22


def _digest(path: Path, copy_to: Path | None = None) -> dict[str, Any]:
    """The sha256 and length of a file, copied on the way where asked: one read for both."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as source, (copy_to or Path(os.devnull)).open("wb") as target:
        while block := source.read(_BLOCK):
            digest.update(block)
            size += len(block)
            target.write(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _files(folder: Path) -> list[str]:
    """Every file below the folder but the manifest, as relative names in a fixed order.

    Raises:
      CheckpointError: there is a symbolic link, whose target no digest of this folder speaks for.
    """
    found = []
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise CheckpointError(f"{str(path)!r} is a symbolic link: a model must hold its files itself; replace it.")
        if path.is_file():
            found.append(path.relative_to(folder).as_posix())
    return sorted(name for name in found if name != MANIFEST)


def is_version(has_file: Callable[[str], bool]) -> bool:
    """Whether a folder is a published version, complete or not, given whether it has a file of a name."""
    return has_file(MODEL) or has_file(MANIFEST)


def file_digests(folder: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """`{relative name: {"bytes", "sha256"}}` of every file below the folder but the manifest itself."""
    return {name: _digest(Path(folder) / name) for name in _files(Path(folder))}


def content_digest(files: Mapping[str, Mapping[str, Any]]) -> str:
    """One sha256 over the names and digests of all files: equal exactly where the folders' contents are."""
    lines = "".join(f"{files[name]['sha256']}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def copy_files(source: Path, target: Path) -> dict[str, dict[str, Any]]:
    """Copy a model into a new folder, and read it back.

    Args:
      source: folder of a SavedModel.
      target: folder to copy into; it must exist and be empty.

    Returns:
      The digests of the files, as `file_digests` gives them.

    Raises:
      CheckpointError: what was written is not what was read.
    """
    files = {}
    for name in _files(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        files[name] = _digest(source / name, copy_to=target / name)
    if files != file_digests(target):
        raise CheckpointError(f"the copy of {str(source)!r} is not what was read: check the disk, and push again.")
    return files


def write_manifest(folder: Path, files: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """Write the manifest of a folder; returns the content digest.

    Args:
      folder: of the copied model.
      files: digests of its files.
      facts: JSON values that the manifest says besides the files (vocabularies, parity figures).
    """
    digest = content_digest(files)
    manifest = {"digest": digest, "facts": facts, "files": files}
    path = folder / MANIFEST
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**manifest, "seal": json_digest(manifest)}, indent=2, sort_keys=True))
    return digest


def verify_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the manifest of a published version and check every file against it.

    Returns:
      The manifest: `digest`, `facts` and `files`.

    Raises:
      CheckpointError: there is no manifest, it is damaged, or a file is missing, damaged, a link or not in it.
    """
    if "://" in os.fspath(folder):
        raise CheckpointError(f"{os.fspath(folder)!r} is an address: copy the version here, and name the copy.")
    path = Path(folder) / MANIFEST
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"{os.fspath(folder)!r} has no {MANIFEST}: name the folder of one published version, such as "
            "runs/x/serving/1790000000; where it is one, publish the model again."
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{str(path)!r} is not a readable manifest ({error}): publish the model again."
        ) from error
    return verified(os.fspath(folder), text, lambda: _digests_to_verify(folder))


def verified(folder: str, text: bytes, digests: Callable[[], Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Check the text of a manifest, and the files of its folder against it.

    Args:
      folder: local or an address, for messages.
      text: of its manifest.
      digests: called for `file_digests` of the folder if the manifest is not damaged.

    Raises:
      CheckpointError: the manifest is damaged, or a file is missing, damaged or not in it.
    """
    path = os.path.join(folder, MANIFEST)
    try:
        manifest: dict[str, Any] = json.loads(text)
        listed = dict(manifest["files"])
        seal = manifest.pop("seal")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path!r} is not a readable manifest ({error}): publish the model again.") from error
    if seal != json_digest(manifest):
        raise CheckpointError(f"{path!r} is damaged: it is not what its seal says; publish the model again.")
    found = digests()
    wrong = sorted(name for name in listed.keys() | found.keys() if listed.get(name) != found.get(name))
    if wrong or content_digest(listed) != manifest.get("digest"):
        what = wrong[0] if wrong else MANIFEST
        raise CheckpointError(
            f"{folder!r} is damaged: {what!r} is not what its manifest says; publish the model again."
        )
    return manifest


def _digests_to_verify(folder: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    try:
        return file_digests(folder)
    except OSError as error:
        raise CheckpointError(
            f"{os.fspath(folder)!r} cannot be read ({error}): give this process the right to read every file of it."
        ) from error

"""Computes digests, adds them to JSON objects and folders, and verifies them when they are read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from embedding_core.errors import CheckpointError
from embedding_core.schema import Json
from embedding_core.storage.file_access import StrPath, exists, file_names_below, make_folders, open_file, read_bounded

# Adds a digest to a JSON object and verifies it when the object is read, so that damage is noticed.

SEAL = "sha256"
"""The default key of the digest."""


def sealed_json(facts: Mapping[str, object], seal: str = SEAL) -> bytes:
    """Serialize a JSON object, with its digest under the key `seal`."""
    return (json.dumps({**facts, seal: json_digest(facts)}, indent=2, sort_keys=True) + "\n").encode()


def unsealed_json(data: bytes | str, seal: str = SEAL) -> Json:
    """Parse what `sealed_json` returned, verify the digest, and return the object without it.

    Raises:
      ValueError: the data are not what `sealed_json` returned.
    """
    facts = _parsed(data)
    if not isinstance(facts, dict) or facts.pop(seal, None) != json_digest(facts):
        raise ValueError(f"its `{seal}` is the digest of other content")
    return facts


def read_json(path: StrPath) -> Any:
    """Return the value of a JSON file, local or at an address, that others may have written.

    Raises:
      OSError: the file is missing, cannot be read, or is not a regular file.
      ValueError: it is not JSON, or has more than `bounds.JSON_BYTES`.
    """
    return _parsed(read_bounded(path))


def _parsed(data: bytes | str) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def json_digest(facts: Mapping[str, object]) -> str:
    """Compute the sha256 of a JSON object, in hexadecimal digits; the order of its keys does not change it."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


# Computes digests of files in blocks, so that memory does not grow with the files.

_BLOCK = 4 << 20


class FileDigest(TypedDict):
    """Size and digest of a file.

    Attributes:
      size: size in bytes.
      sha256: in hexadecimal digits.
    """

    size: int
    sha256: str


def file_digest(path: StrPath, copy_to: StrPath = os.devnull) -> FileDigest:
    """Compute the size and digest of a file, local or at an address.

    Args:
      path: path of the file.
      copy_to: file that receives a copy of the contents.
    """
    digest, size = hashlib.sha256(), 0
    with open_file(path) as file, open_file(copy_to, "wb") as copy:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
            copy.write(block)
    return {"size": size, "sha256": digest.hexdigest()}


def masked(crc32c: int) -> int:
    """Rotate a CRC-32C and add a constant, as TFRecord files and TensorFlow's checkpoints store it."""
    return ((crc32c >> 15 | crc32c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def folder_digests(folder: StrPath) -> dict[str, FileDigest]:
    """Compute the digest of every file of a folder and its subfolders, by its name relative to the folder."""
    return {name: file_digest(os.path.join(folder, name)) for name in file_names_below(folder)}


# Seals a folder with a manifest: a JSON object with the size and sha256 of every file, and a digest of itself.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SealedFolder:
    """One kind of sealed folder: the path and keys of its manifest, and the texts of its error messages.

    Attributes:
      constants: facts that every manifest of this kind states, such as its format.
      manifest: path of the manifest in the folder.
      seal: key of the manifest's own digest.
      size: key of the size of a file.
      missing: what to do if a folder has no manifest, for messages.
      remedy: what to do if a folder is damaged, for messages.
    """

    constants: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    manifest: str = "manifest.json"
    seal: str = SEAL
    size: str = "size"
    missing: str = "it is not a complete checkpoint; name one that is"
    remedy: str = "take another checkpoint"

    def write(
        self, folder: StrPath, facts: Mapping[str, object], files: Mapping[str, FileDigest] | None = None
    ) -> None:
        """Write the manifest.

        Args:
          folder: the folder to seal.
          facts: JSON values that the manifest states besides the files.
          files: the digests of the files, if they are known; None reads the files that the folder has now.
        """
        files = self.digests(folder) if files is None else files
        listed = {name: {self.size: entry["size"], "sha256": entry["sha256"]} for name, entry in files.items()}
        path = os.path.join(folder, self.manifest)
        make_folders(os.path.dirname(path))
        with open_file(path, "wb") as file:
            file.write(sealed_json({**self.constants, **facts, "files": listed}, self.seal))

    def read(self, folder: StrPath) -> Json:
        """Read the manifest, but no other file.

        Raises:
          CheckpointError: the manifest is missing, damaged, or of another kind of folder.
        """
        path = os.path.join(folder, self.manifest)
        try:
            body = unsealed_json(read_bounded(path), self.seal)
            if not isinstance(body["files"], dict):
                raise ValueError("`files` is not an object")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointError(f"{os.fspath(folder)!r} has no {self.manifest}: {self.missing}.") from error
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{path!r} is damaged ({error}): {self.remedy}.") from error
        except OSError as error:
            raise CheckpointError(f"{path!r} cannot be read ({error}): {self.remedy}.") from error
        for key, value in self.constants.items():
            if body.get(key) != value:
                raise CheckpointError(
                    f"`{key}` of {path!r} is {body.get(key)!r}: it must be {value!r}; give a folder of that kind, or "
                    "read this one with the release that wrote it."
                )
        return body

    def exists(self, folder: StrPath) -> bool:
        """Return whether the folder has a manifest."""
        return exists(os.path.join(folder, self.manifest))

    def digests(self, folder: StrPath) -> dict[str, FileDigest]:
        """Compute the digests of all files of the folder but the manifest."""
        return {name: entry for name, entry in folder_digests(folder).items() if name != self.manifest}

    def verify(self, folder: StrPath, digests: Callable[[StrPath], Mapping[str, FileDigest]] | None = None) -> Json:
        """Read the manifest, and compare the files with it.

        Args:
          folder: the sealed folder.
          digests: returns the digests of all files to compare; None compares only those that the manifest lists.

        Returns:
          The manifest.

        Raises:
          CheckpointError: the manifest or a file is missing or damaged, the folder is of another kind, or `digests`
            has a file that the manifest does not list.
        """
        body = self.read(folder)
        recorded = body["files"]
        try:
            present = _listed(folder, recorded) if digests is None else digests(folder)
        except OSError as error:
            raise CheckpointError(f"{os.fspath(folder)!r} cannot be read ({error}): {self.remedy}.") from error
        for name in sorted(recorded.keys() | present.keys()):
            entry = present.get(name)
            if entry is None or recorded.get(name) != {self.size: entry["size"], "sha256": entry["sha256"]}:
                raise CheckpointError(
                    f"{os.fspath(folder)!r} is damaged: {name!r} is not what its manifest says; {self.remedy}."
                )
        return body


def _listed(folder: StrPath, names: Json) -> dict[str, FileDigest]:
    """Return the digests of those of the named files that exist."""
    digests = {}
    for name in names:
        try:
            digests[name] = file_digest(os.path.join(folder, name))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
    return digests

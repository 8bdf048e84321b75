"""Seals a folder with a manifest: a JSON object with the size and sha256 of every file, and a digest of itself."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

from embedding_core.errors import CheckpointError
from embedding_core.schema import Json
from embedding_core.storage.digests import FileDigest, file_digest, folder_digests
from embedding_core.storage.file_access import StrPath, exists, make_folders, open_file, read_bounded
from embedding_core.storage.seals import SEAL, sealed_json, unsealed_json


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
        listed = {name: {self.size: one["size"], "sha256": one["sha256"]} for name, one in files.items()}
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
        return {name: one for name, one in folder_digests(folder).items() if name != self.manifest}

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
            one = present.get(name)
            if one is None or recorded.get(name) != {self.size: one["size"], "sha256": one["sha256"]}:
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

"""Computes digests of the files of artifacts, and compares them with those in the metadata to find damage."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator

from ml_metadata.proto import metadata_store_pb2 as mlmd

from embedding_core.storage import file_digest, file_names_below

CONTENT = "content"
"""Custom property of an artifact that holds its `Content` as JSON."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    """What an artifact's folder contains.

    Attributes:
      digest: sha256 over names and contents of all files, in order of their names.
      stamp: sha256 over names, sizes and modification times of all files, in the same order.
      size: bytes of all files.
      files: number of files.
    """

    digest: str
    stamp: str
    size: int
    files: int


def read_content(folder: str) -> Content | None:
    """Read every file of a folder, or a single file; return None if the path does not exist or is remote."""
    if not os.path.exists(folder):
        return None
    stamp = _stamp(folder)
    files = [(name, file_digest(path)) for name, path in _files(folder)]
    digest = hashlib.sha256("".join(f"{name}\0{entry['sha256']}\n" for name, entry in files).encode())
    size = sum(entry["size"] for _, entry in files)
    return Content(digest=digest.hexdigest(), stamp=stamp, size=size, files=len(files))


def note_content(artifact: mlmd.Artifact) -> bool:
    """Set the property `CONTENT` to what the artifact's folder contains now; return whether it could be read."""
    content = read_content(artifact.uri)
    if content is not None:
        artifact.custom_properties[CONTENT].string_value = json.dumps(dataclasses.asdict(content), sort_keys=True)
    return content is not None


def recorded_content(artifact: mlmd.Artifact) -> Content | None:
    """Return the content of an artifact as the metadata recorded it; None if it was not recorded.

    If the record cannot be parsed, because the store is damaged, the result differs from every folder's content.
    """
    if CONTENT not in artifact.custom_properties:
        return None
    try:
        return Content(**json.loads(artifact.custom_properties[CONTENT].string_value))
    except (ValueError, TypeError):
        return Content(digest="", stamp="", size=0, files=0)


def is_as_recorded(uri: str, recorded: Content, *, by_digest: bool) -> bool:
    """Return whether the folder still contains what was recorded.

    Args:
      uri: address of the folder.
      recorded: its content as the metadata recorded it.
      by_digest: whether to read every byte. If false, names, sizes and modification times are compared first, and the
        files are read only if these differ. Only reading finds damage that changes neither size nor time.
    """
    if not os.path.exists(uri):
        return False
    if not by_digest and _stamp(uri) == recorded.stamp:
        return True
    content = read_content(uri)  # the files may have been copied or touched
    return content is not None and content.digest == recorded.digest


def _stamp(folder: str) -> str:
    stamp = hashlib.sha256()
    for name, path in _files(folder):
        facts = os.stat(path)
        stamp.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return stamp.hexdigest()


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the name below the folder and the path of every file, sorted; a single file has its base name."""
    if os.path.isfile(folder):
        yield os.path.basename(folder), folder
        return
    paths = ((name, os.path.join(folder, name)) for name in file_names_below(folder))
    yield from ((name, path) for name, path in paths if os.path.isfile(path))

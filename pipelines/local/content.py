"""Digests of what artifacts contain, as their metadata records them: damage is found by comparing the two."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

from embedding_core.storage import file_digest, file_names_below

CONTENT = "content"
"""Custom property of an artifact: a JSON object of `Content`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    """What an artifact's folder contains.

    Attributes:
      digest: sha256 over names and contents of all files, in order of their names.
      stamp: sha256 over names, sizes and times of change.
      size: bytes of all files.
      files: how many there are.
    """

    digest: str
    stamp: str
    size: int
    files: int


def read_content(folder: str) -> Content | None:
    """Read every file of the folder, or the one file; None if nothing is there, or if it is remote."""
    if not os.path.exists(folder):
        return None
    stamp = _stamp(folder)
    files = [(name, file_digest(path)) for name, path in _files(folder)]
    digest = hashlib.sha256("".join(f"{name}\0{one['sha256']}\n" for name, one in files).encode())
    size = sum(one["size"] for _, one in files)
    return Content(digest=digest.hexdigest(), stamp=stamp, size=size, files=len(files))


def content_json(folder: str) -> str | None:
    """The value of the property `CONTENT` for the folder as it is now; None as for `read_content`."""
    content = read_content(folder)
    return None if content is None else json.dumps(dataclasses.asdict(content), sort_keys=True)


def recorded_content(artifact: Any) -> Content | None:
    """What the metadata says of an artifact, given as ML Metadata has it; None if it says nothing.

    A record that cannot be read (a damaged store) is one that no folder is as.
    """
    if CONTENT not in artifact.custom_properties:
        return None
    try:
        return Content(**json.loads(artifact.custom_properties[CONTENT].string_value))
    except (ValueError, TypeError):
        return Content(digest="", stamp="", size=0, files=0)


def is_as_recorded(uri: str, recorded: Content, *, by_digest: bool) -> bool:
    """Whether the folder still contains what was recorded.

    Args:
      uri: of the folder.
      recorded: what the metadata says of it.
      by_digest: whether every byte is read; else names, sizes and times of change are compared first, and files are
        read only if those differ. Damage that keeps size and time is found by reading alone.
    """
    if not os.path.exists(uri):
        return False
    if not by_digest and _stamp(uri) == recorded.stamp:
        return True
    found = read_content(uri)  # copied or touched: what counts is what is in the files
    return found is not None and found.digest == recorded.digest


def _stamp(folder: str) -> str:
    stamp = hashlib.sha256()
    for name, path in _files(folder):
        facts = os.stat(path)
        stamp.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return stamp.hexdigest()


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """Names below the folder, in order, and paths; of a single file, its own."""
    if os.path.isfile(folder):
        yield os.path.basename(folder), folder
        return
    paths = ((name, os.path.join(folder, name)) for name in file_names_below(folder))
    yield from ((name, path) for name, path in paths if os.path.isfile(path))

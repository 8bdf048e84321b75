"""Computes digests of files in blocks, so that memory does not grow with the files."""

from __future__ import annotations

import hashlib
import os
from typing import TypedDict

from embedding_core.storage.file_access import StrPath, file_names_below, open_file

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

"""Opens, lists, moves and removes files: local files and, with TensorFlow, addresses such as gs://bucket/x.

TensorFlow is imported only for an address. Its errors become OSErrors, except in `exists`, `is_folder` and `names_in`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from typing import IO, Any, TypeAlias

from embedding_core.storage import bounds

StrPath: TypeAlias = str | os.PathLike[str]


def is_remote(path: StrPath) -> bool:
    """Return whether the path is an address of an object store."""
    return "://" in os.fspath(path)


def _gfile() -> Any:
    from tensorflow.io import gfile

    return gfile


@contextlib.contextmanager
def tensorflow_errors_as_os_errors() -> Iterator[None]:
    """Turn every error that TensorFlow raises in the block into an OSError.

    Raises:
      FileNotFoundError: TensorFlow did not find a file, or a parent of it is not a folder.
      OSError: TensorFlow raised another error.
    """
    try:
        yield
    except Exception as error:
        errors = getattr(sys.modules.get("tensorflow"), "errors", None)
        if errors is None or not isinstance(error, errors.OpError):
            raise
        if isinstance(error, errors.NotFoundError | errors.FailedPreconditionError):
            raise FileNotFoundError(errno.ENOENT, error.message) from error
        raise OSError(error.message) from error


@contextlib.contextmanager
def open_file(path: StrPath, mode: str = "rb") -> Iterator[IO[Any]]:
    """Open a file for the block.

    Raises:
      OSError: the file is missing, or cannot be read or written; or it is to be read and is not a regular file.
    """
    if not is_remote(path):
        if "r" in mode:
            check_regular(path)
        with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        return
    with tensorflow_errors_as_os_errors(), _gfile().GFile(os.fspath(path), mode) as file:
        yield file


def check_regular(path: StrPath) -> None:
    """Check that a local path is a file or folder: opening a named pipe waits for a writer, and a device has no end.

    Raises:
      OSError: it is missing, or something else.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "it is a named pipe, a socket or a device, not a regular file", os.fspath(path))


def read_bounded(path: StrPath, most: int | None = None) -> bytes:
    """Return the content of a file that others may have written.

    Args:
      path: the file, local or at an address.
      most: the largest number of bytes; None is `bounds.JSON_BYTES`.

    Raises:
      OSError: the file is missing, cannot be read, or is not a regular file.
      ValueError: it is larger.
    """
    with open_file(path) as file:
        return bounded_content(file, most)


def bounded_content(file: IO[bytes], most: int | None = None) -> bytes:
    """Return what is left of an opened file that others may have written.

    Args:
      file: the file.
      most: the largest number of bytes; None is `bounds.JSON_BYTES`.

    Raises:
      ValueError: it is larger.
    """
    most = bounds.JSON_BYTES if most is None else most
    content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes, the most that is read of such a file")
    return content


def exists(path: StrPath) -> bool:
    """Return whether there is a file or folder."""
    return bool(_gfile().exists(path)) if is_remote(path) else os.path.exists(path)


def is_folder(path: StrPath) -> bool:
    """Return whether there is a folder."""
    return bool(_gfile().isdir(path)) if is_remote(path) else os.path.isdir(path)


def names_in(folder: StrPath) -> list[str]:
    """List the names of the files and folders in a folder; none if there is no such folder."""
    if not is_folder(folder):
        return []
    return [name.rstrip("/") for name in (_gfile().listdir(folder) if is_remote(folder) else os.listdir(folder))]


def file_names_below(folder: StrPath) -> list[str]:
    """List the files of a folder and its subfolders, as sorted names relative to it."""
    with tensorflow_errors_as_os_errors():
        walk = _gfile().walk(folder) if is_remote(folder) else os.walk(folder)
        paths = [os.path.join(parent, name) for parent, _, names in walk for name in names]
    return sorted(os.path.relpath(path, folder) for path in paths)


def make_folders(path: StrPath) -> None:
    """Make a folder and its parents, if they are missing."""
    with tensorflow_errors_as_os_errors():
        _gfile().makedirs(path) if is_remote(path) else os.makedirs(path, exist_ok=True)


def move(source: StrPath, target: StrPath, *, replace: bool = False) -> None:
    """Rename a file or folder.

    The target must not exist, unless it is a file and `replace` is true. If it is a local file, it is always replaced.
    """
    with tensorflow_errors_as_os_errors():
        _gfile().rename(source, target, replace) if is_remote(source) else os.rename(source, target)


def remove_file(path: StrPath) -> None:
    """Delete a file; it is not an error if there is none."""
    with contextlib.suppress(FileNotFoundError), tensorflow_errors_as_os_errors():
        _gfile().remove(path) if is_remote(path) else os.remove(path)


def remove_tree(folder: StrPath) -> None:
    """Delete a folder and its content; it is not an error if another process deletes it at the same time."""
    with contextlib.suppress(FileNotFoundError), tensorflow_errors_as_os_errors():
        _gfile().rmtree(folder) if is_remote(folder) else shutil.rmtree(folder)

"""Checks and writes the files that a user names on the command line."""

from __future__ import annotations

import contextlib
import os

from embedding_core.errors import ConfigError


def check_output(option: str, path: str | os.PathLike[str]) -> None:
    """Check that a file can be written.

    Raises:
      ConfigError: its folder does not exist or cannot be written to, or the path is a folder.
    """
    path = os.path.abspath(path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        problem = "No such folder"
    elif os.path.isdir(path):
        problem = "Is a directory"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        problem = "Permission denied"
    else:
        return
    raise _error(option, path, problem)


def write_output(option: str, path: str | os.PathLike[str], text: str) -> None:
    """Write a file in one step: it is complete, or not written.

    Raises:
      ConfigError: it cannot be written.
    """
    new = f"{os.fspath(path)}.new"
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.remove(new)
        raise _error(option, os.fspath(path), error.strerror) from error


def _error(option: str, path: str, problem: str | None) -> ConfigError:
    return ConfigError(
        f"`{option}` is {path!r}, which cannot be written ({problem}): name a file in a folder that exists."
    )

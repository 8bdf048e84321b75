"""Resolves the paths of the configuration: relative, home, inside an installed package, remote."""

from __future__ import annotations

import importlib.util
import os
import re

from embedding_core.errors import ConfigError
from embedding_core.storage import is_remote

_PACKAGE = "package:"
_ADDRESS = re.compile(r"\w[\w+.-]*://[^/]")


def is_address(path: str) -> bool:
    """Return whether every machine of a cluster can reach the path: `gs://bucket/x`, not `gs://` alone."""
    return bool(_ADDRESS.match(path))


def resolve(path: str, folder: str) -> str:
    """Return the absolute path: relative ones start at the folder, `package:` ones in the installed package.

    Raises:
      ConfigError: the package is not installed.
    """
    if is_remote(path):
        return path
    if path.startswith(_PACKAGE):
        return _in_package(path)
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


def _in_package(path: str) -> str:
    package, _, rest = path.removeprefix(_PACKAGE).partition("/")
    # find_spec of a name without dots looks for the package and does not import it.
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"is {path!r}: package {package!r} is not installed; install it, or give another path.")
    return os.path.join(next(iter(spec.submodule_search_locations)), *rest.split("/"))

"""Finds out which packages of the extra `tfx` are installed, and imports none of them.

The core works without these packages.
"""

from __future__ import annotations

import importlib.util

from embedding_core.errors import ConfigError

INSTALL_TFX = "install tfx-embeddings[tfx]"


def is_installed(package: str) -> bool:
    """Return whether a top-level package can be imported."""
    return importlib.util.find_spec(package) is not None


def require_package(package: str, use: str, remedy: str = INSTALL_TFX) -> None:
    """Refuse a use of a package that is not installed.

    Args:
      package: name of the top-level package.
      use: what needs it, such as "`run` needs TFX".
      remedy: what to do.

    Raises:
      ConfigError: the package is not installed.
    """
    if not is_installed(package):
        raise ConfigError(f"{use}: {remedy}.")

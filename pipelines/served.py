"""The versions in the serving folder, and what their manifests say."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from components.pusher.manifest import MANIFEST
from embedding_core.errors import ConfigError
from pipelines.config.paths import is_remote

__all__ = ["manifest_facts", "served_versions"]


def served_versions(destination: str) -> list[int]:
    """The numbers in the folder, the oldest first."""
    if is_remote(destination):
        from components.pusher.remote import remote_versions  # it loads TensorFlow

        return sorted(remote_versions(destination))
    names = os.listdir(destination) if os.path.isdir(destination) else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def manifest_facts(destination: str, version: int) -> Mapping[str, Any]:
    """What the manifest of a version says besides its files.

    Raises:
      ConfigError: it cannot be read.
    """
    path = os.path.join(destination, str(version), MANIFEST)
    try:
        if is_remote(path):
            import tensorflow as tf

            text = tf.io.gfile.GFile(path).read()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        facts: Mapping[str, Any] = json.loads(text)["facts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path!r} cannot be read ({error}): it says which training is served; publish the model again, or name "
            'the base by "pushed" or its address.'
        ) from error
    return facts

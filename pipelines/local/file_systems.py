"""Checks that TensorFlow can reach the addresses of a run, before anything is read or written."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.storage import is_remote
from pipelines.config import PipelineConfig


def check_file_systems(config: PipelineConfig) -> None:
    """Refuse an address whose kind of store TensorFlow has no file system for.

    Raises:
      ConfigError: there is such an address.
    """
    known = set(tf.io.gfile.get_registered_schemes())
    for key, address in _addresses(config):
        scheme = address.partition("://")[0]
        if scheme not in known:
            raise ConfigError(
                f"`{key}` is {address!r}: TensorFlow here has no file system for {scheme}://, only for "
                f"{', '.join(f'{one}://' for one in sorted(known - {'', 'file'}))}; see docs/object_stores.md."
            )


def _addresses(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    given = {
        "data.path": config.data.path,
        "work_dir": config.work_dir,  # before the destination, which is in it by default
        "push.destination": config.push_destination,
        "evaluation.baseline": config.evaluation.baseline,
        "warm_start.checkpoint": None if config.warm_start is None else config.warm_start.checkpoint,
    }
    yield from ((key, value) for key, value in given.items() if value is not None and is_remote(value))

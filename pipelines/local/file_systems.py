"""Checks that TensorFlow can reach the addresses of a run, before anything is read or written."""

from __future__ import annotations

from collections.abc import Iterator

from embedding_core.errors import ConfigError
from embedding_core.storage import is_remote
from pipelines.config import PipelineConfig


def check_file_systems(config: PipelineConfig) -> None:
    """Refuse an address whose kind of store TensorFlow has no file system for; without addresses, load no TensorFlow.

    Raises:
      ConfigError: there is such an address.
    """
    for key, address in _addresses(config):
        check_address(f"`{key}`", address)


def check_address(name: str, address: str) -> None:
    """Refuse one address.

    Args:
      name: what has the address, as the error names it.
      address: the address.

    Raises:
      ConfigError: TensorFlow has no file system for it.
    """
    import tensorflow as tf

    known = set(tf.io.gfile.get_registered_schemes())
    scheme = address.partition("://")[0]
    if scheme not in known:
        raise ConfigError(
            f"{name} is {address!r}: TensorFlow here has no file system for {scheme}://, only for "
            f"{', '.join(f'{one}://' for one in sorted(known - {'', 'file'}))}; see docs/object_stores.md."
        )


def _addresses(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    given = {
        "data.path": config.data.path,
        "push.destination": config.push_destination,
        "evaluation.baseline": config.evaluation.baseline,
        "warm_start.checkpoint": None if config.warm_start is None else config.warm_start.checkpoint,
    }
    yield from ((key, value) for key, value in given.items() if value is not None and is_remote(value))

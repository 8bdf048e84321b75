"""The folder that holds everything a pipeline writes: made, checked, and held by one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from embedding_core.errors import ConfigError
from pipelines.config import PipelineConfig

__all__ = ["held", "prepare"]

_LOCK = ".lock"


def prepare(config: PipelineConfig) -> None:
    """Make the work_dir where it is not there.

    Raises:
      ConfigError: it cannot be made, or not be written to.
    """
    try:
        os.makedirs(config.work_dir, exist_ok=True)
        with open(os.path.join(config.work_dir, _LOCK), "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ConfigError(
            f"`work_dir` is {config.work_dir!r}: it must be a folder that can be written to ({error.strerror}); "
            "give another one."
        ) from error


@contextlib.contextmanager
def held(config: PipelineConfig) -> Iterator[None]:
    """Hold the work_dir: a second run in it would write the same checkpoints. The lock dies with its process.

    Raises:
      ConfigError: another run holds it, or it cannot be written to.
    """
    prepare(config)
    with open(os.path.join(config.work_dir, _LOCK), "r+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"`work_dir` is {config.work_dir!r}: another run uses it, process {lock.read().strip() or '?'}; "
                "wait for it, or give another folder."
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield

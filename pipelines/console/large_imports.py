"""Imports large packages without repeated garbage collections over their objects."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector; when it resumes, it ignores all objects that exist by then.

    Modules live as long as the process. Without the pause, the collector takes a third of the time in which TensorFlow
    and TFX load, and each later full collection walks their objects again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()

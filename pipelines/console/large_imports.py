"""Imports large packages without walking their objects again and again in search of garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector; afterwards it ignores all objects that exist by then.

    Modules live as long as the process. Without the pause, a third of the time in which TensorFlow and TFX load goes to
    the collector, and later each full collection would walk their objects again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()

"""Notices SIGTERM, which schedulers send before they take the machine away."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from embedding_core.errors import PreemptionError


@contextlib.contextmanager
def noticed_preemption() -> Iterator[Callable[[], bool]]:
    """Record SIGTERM instead of ending the process, until the block ends.

    Only the main thread of a process may set a signal handler; in another thread SIGTERM is not recorded and keeps its
    effect.

    Yields:
      A function that returns whether SIGTERM has come.
    """
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return

    def notice(number: int, frame: object) -> None:
        came.set()

    before = signal.signal(signal.SIGTERM, notice)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGTERM, before)


def end_if(preempted: Callable[[], bool]) -> None:
    """End a training that has not taken a step yet, if SIGTERM has come.

    Raises:
      PreemptionError: SIGTERM has come.
    """
    if preempted():
        raise PreemptionError(
            "SIGTERM came before the first step of this process; nothing is lost: start the same run again to continue."
        )

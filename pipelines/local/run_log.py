"""Redirects what TensorFlow, TFX and Beam write during a run from the screen to a log file in the work_dir."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import sys
import traceback
from collections.abc import Iterator
from typing import TextIO

from embedding_core.errors import ConfigError

_KEPT = 20


@dataclasses.dataclass
class _State:
    failed: str | None = None  # log of the run in this process that failed
    on_screen: bool = False


_state = _State()


def current_log() -> str | None:
    """Return the path of the log of the run in this process that failed, or None."""
    return _state.failed


def forget_log() -> None:
    """Forget the log of a previous run in this process."""
    _state.failed = None


def to_screen(wanted: bool) -> None:
    """Choose whether later runs in this process write to the screen instead of a log."""
    _state.on_screen = wanted


@contextlib.contextmanager
def captured(work_dir: str) -> Iterator[TextIO]:
    """Redirect stdout and stderr, also of C++ and of child processes, to a new log file.

    An error that ends the run is logged with its traceback. If the log stays empty, it is removed. Only the newest 20
    logs are kept. After `to_screen(True)`, nothing is redirected.

    Args:
      work_dir: folder of the pipeline; the log is in `logs` below it.

    Yields:
      The screen, which is the previous stderr, for messages to the user.

    Raises:
      ConfigError: no log can be written there.
    """
    if _state.on_screen:
        yield sys.stderr
        return
    path = _new_log(os.path.join(work_dir, "logs"))
    before = _redirected(path)
    try:
        with os.fdopen(os.dup(before[1]), "w", encoding="utf-8", errors="backslashreplace") as screen:
            yield screen
    except BaseException:
        _state.failed = path
        _append_traceback(path)
        raise
    finally:
        _flush()
        for number, saved in zip((1, 2), before, strict=True):
            os.dup2(saved, number)
            os.close(saved)
        if os.path.exists(path) and not os.path.getsize(path):
            os.remove(path)


def _new_log(folder: str) -> str:
    """Create a log that only its owner can read, since messages of packages may quote rows; remove the oldest logs."""
    moment = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    path = os.path.join(folder, f"{moment}.log")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        for name in sorted(one for one in os.listdir(folder) if one.endswith(".log"))[:-_KEPT]:
            os.remove(os.path.join(folder, name))
    except OSError as error:
        raise ConfigError(
            f"`work_dir`: no log can be written to {folder!r} ({error.strerror}); free some space, or give another one."
        ) from error
    return path


def _redirected(path: str) -> tuple[int, int]:
    """Point stdout and stderr of the process to the file; return copies of the previous ones."""
    _flush()
    before = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return before


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a stream that is closed
            stream.flush()


def _append_traceback(path: str) -> None:
    with contextlib.suppress(OSError), open(path, "a", encoding="utf-8", errors="backslashreplace") as log:
        traceback.print_exc(file=log)

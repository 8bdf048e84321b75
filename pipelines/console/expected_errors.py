"""Finds the error that this project raised on purpose inside the errors that others wrapped around it.

An orchestrator chains exceptions, Beam puts a worker's traceback into the text of another error, and
TensorFlow reports a failed check of a graph (see `pipelines.preprocessing`) with the text of the check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from embedding_core import errors
from embedding_core.errors import EmbeddingError, PreemptionError

__all__ = ["chain", "expected_message", "was_preempted"]

_KINDS = "|".join(errors.__all__)
_IN_TRACEBACK = re.compile(rf"^embedding_core\.errors\.(?:{_KINDS}): (.+)$", re.MULTILINE)
_WHILE_RUNNING = re.compile(r" \[while running .*\]$")  # what Beam adds to the message
# The message may hold brackets of its own, so it ends at the line's last one; what others add after it is cut off.
_IN_ASSERTION = re.compile(rf"assertion failed: \[(?:{_KINDS}): (.+)\]")
_AFTER_ASSERTION = re.compile(r"\](?:\\n| \[Op:| \[while running | \[\[).*$")


def expected_message(error: BaseException) -> str | None:
    """The message for the user, or None where the error is none that this project foresaw."""
    for one in chain(error):
        if isinstance(one, EmbeddingError):
            return _WHILE_RUNNING.sub("", str(one))
    for one in chain(error):
        text = str(one)
        found = _IN_ASSERTION.search(text)
        if found:
            return _AFTER_ASSERTION.sub("", found.group(1))
        found = next(reversed(list(_IN_TRACEBACK.finditer(text))), None)
        if found:
            return _WHILE_RUNNING.sub("", found.group(1))
    return None


def was_preempted(error: BaseException) -> bool:
    """Whether training was asked to stop, and saved its state to go on from."""
    return any(isinstance(one, PreemptionError) for one in chain(error))


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it came from, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

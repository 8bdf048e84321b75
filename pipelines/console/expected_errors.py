"""Finds an error that this project raised inside the errors that other packages wrapped around it.

An orchestrator chains exceptions, Beam puts a worker's traceback into the text of another error, and TensorFlow reports
a failed assertion of a graph (see `pipelines.preprocessing`) with the text of the assertion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from embedding_core import errors
from embedding_core.errors import EmbeddingError, PreemptionError

_KINDS = "|".join(
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, EmbeddingError)
)
_IN_TRACEBACK = re.compile(rf"^embedding_core\.errors\.(?:{_KINDS}): (.+)$", re.MULTILINE)
_WHILE_RUNNING = re.compile(r" \[while running .*\]$")  # Beam adds this to the message
# The message may contain brackets, so match up to the line's last bracket, and cut off what others add after it.
_IN_ASSERTION = re.compile(rf"assertion failed: \[(?:{_KINDS}): (.+)\]")
_AFTER_ASSERTION = re.compile(r"\](?:\\n| \[Op:| \[while running | \[\[).*$")


def expected_message(error: BaseException) -> str | None:
    """Return the message for the user; None if this project did not raise the error."""
    for cause in chain(error):
        if isinstance(cause, EmbeddingError):
            return _WHILE_RUNNING.sub("", str(cause))
    for cause in chain(error):
        text = str(cause)
        match = _IN_ASSERTION.search(text)
        if match:
            return _AFTER_ASSERTION.sub("", match.group(1))
        match = next(reversed(list(_IN_TRACEBACK.finditer(text))), None)
        if match:
            return _WHILE_RUNNING.sub("", match.group(1))
    return None


def was_preempted(error: BaseException) -> bool:
    """Return whether training was asked to stop and saved its state."""
    return any(isinstance(cause, PreemptionError) for cause in chain(error))


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

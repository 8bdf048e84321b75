"""Says in one line what is wrong with rows that TensorFlow cannot read or that break a rule."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from embedding_core.errors import DataError
from embedding_core.tracing import without_internals

_ASSERTION = re.compile(r"assertion failed: (.*?)(?:\n|$)", re.DOTALL)
_ONE_TEXT = re.compile(r"\[([^\[\]]*)\]")
_EMPTY_LIST = re.compile(r"Key: (.*?), Index: .*Values size: 0 but output shape")


@contextlib.contextmanager
def data_errors() -> Iterator[None]:
    """Turn TensorFlow's errors about bad rows into a DataError of one line."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
        raise DataError(_rule_broken(error.message)) from error
    except tf.errors.NotFoundError as error:
        raise DataError(
            f"a file of rows is gone ({without_internals(error.message)}): if it was a temporary file, set TMPDIR "
            "to a folder that nothing empties; then start the same run again to continue."
        ) from error
    except UnicodeDecodeError as error:  # TensorFlow's message quotes a row that is not UTF-8
        raise DataError(_rule_broken(error.object.decode(errors="replace"))) from error


def _rule_broken(message: str) -> str:
    """Extract the line of TensorFlow's message that says what is wrong with the data."""
    message = without_internals(message)
    empty = _EMPTY_LIST.search(message)
    if empty:
        return (
            f"column {empty[1]!r} is an empty list in a row, where TensorFlow wants one number: leave the value out, "
            "as this project's ExampleGen does."
        )
    match = _ASSERTION.search(message)
    if not match:
        return message
    text = _ONE_TEXT.fullmatch(match[1])
    return text[1] if text else match[1]

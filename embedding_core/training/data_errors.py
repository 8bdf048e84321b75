"""Says in one line what is wrong with rows that TensorFlow cannot read or that break a rule."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from embedding_core.errors import DataError
from embedding_core.tracing import without_internals

_ASSERTION = re.compile(r"assertion failed: (.*?)(?:\n|$)", re.DOTALL)


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
    match = _ASSERTION.search(message)
    return match[1] if match else message

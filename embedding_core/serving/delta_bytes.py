"""The bytes of a delta's content: a serialized tf.Example of four strings, which a graph can parse.

`numbers` are varints: the number of changed rows, of tokens that came and of tokens that went, table by table in the
order of the layout; the number of dense variables that changed; then, table by table, the changed rows and the rows of
the tokens that came; and the dense variables that changed. Of each ascending list there are the gaps: the first number,
then how far each is from the one before it. `values` are the changed rows, `tokens` the tokens that came and those that
went, each followed by a line break, and `dense` the dense variables; all numbers in them are little-endian.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.varints import from_varints, varints

NUMBERS, VALUES, TOKENS, DENSE = "numbers", "values", "tokens", "dense"
BITS = 35
"""How many bits a number may have: 5 groups."""
COUNTS = 3
"""How many counts there are for each table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableContent:
    """What a delta says of one table.

    Attributes:
      rows: `[n]`, ascending, the changed rows.
      values: the bytes of what these rows become.
      came: the tokens that came.
      came_rows: `[len(came)]`, ascending, their rows.
      went: the tokens that went.
    """

    rows: npt.NDArray[Any]
    values: bytes
    came: Sequence[bytes]
    came_rows: npt.NDArray[Any]
    went: Sequence[bytes]


def write_content(tables: Sequence[TableContent], dense: Sequence[int], weights: Sequence[bytes]) -> bytes:
    """Serialize a delta.

    Args:
      tables: what changed in each table, in the order of the layout.
      dense: the numbers of the dense variables that changed, ascending.
      weights: the bytes of each of them.
    """
    counts = [count for one in tables for count in (len(one.rows), len(one.came), len(one.went))]
    lists = [numbers for one in tables for numbers in (one.rows, one.came_rows)]
    numbers = np.concatenate([[*counts, len(dense)], *map(_gaps, [*lists, np.array(dense, np.int64)])])
    example = tf.train.Example()
    for name, text in (
        (NUMBERS, varints(numbers.astype(np.uint64))[0].tobytes()),
        (VALUES, b"".join(one.values for one in tables)),
        (TOKENS, b"".join(token + b"\n" for one in tables for token in (*one.came, *one.went))),
        (DENSE, b"".join(weights)),
    ):
        if text:
            example.features.feature[name].bytes_list.value.append(text)
    content: bytes = example.SerializeToString(deterministic=True)
    return content


def read_content(
    content: bytes, row_bytes: Sequence[int], dense_bytes: Sequence[int]
) -> tuple[list[TableContent], dict[int, bytes]]:
    """Parse what `write_content` returned.

    Args:
      content: the content.
      row_bytes: the number of bytes of a row of each table.
      dense_bytes: the number of bytes of each dense variable.

    Returns:
      What changed in each table, and the bytes of the dense variables that changed, by number.

    Raises:
      ValueError: the content does not fit these tables.
    """
    features = tf.train.Example.FromString(content).features.feature
    texts = {name: bytes(one.bytes_list.value[0]) for name, one in features.items()}
    numbers = from_varints(texts.get(NUMBERS, b"")).astype(np.int64)
    if ((numbers < 0) | (numbers >> BITS > 0)).any():
        raise ValueError("a number is too large")
    head = COUNTS * len(row_bytes) + 1
    counts = numbers[: head - 1].reshape(-1, COUNTS)
    lists = iter(_split(numbers[head:], [*counts[:, :2].ravel(), numbers[head - 1]]))
    values = iter(_parts(texts.get(VALUES, b""), counts[:, 0] * np.array(row_bytes)))
    tokens = iter(texts.get(TOKENS, b"").split(b"\n")[:-1])
    tables = [
        TableContent(
            rows=np.cumsum(next(lists)),
            values=next(values),
            came=[next(tokens) for _ in range(came)],
            came_rows=np.cumsum(next(lists)),
            went=[next(tokens) for _ in range(went)],
        )
        for _, came, went in counts
    ]
    given = np.cumsum(next(lists)).tolist()
    weights = _parts(texts.get(DENSE, b""), [dense_bytes[number] for number in given])
    return tables, dict(zip(given, weights, strict=True))


def _gaps(ascending: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.diff(ascending.astype(np.int64), prepend=0)


def _split(numbers: npt.NDArray[np.int64], sizes: Sequence[int]) -> Iterator[npt.NDArray[np.int64]]:
    if sum(sizes) != len(numbers):
        raise ValueError(f"there are {len(numbers)} numbers for {sum(sizes)}")
    yield from np.split(numbers, np.cumsum(sizes)[:-1])


def _parts(content: bytes, sizes: Any) -> Iterator[bytes]:
    if sum(sizes) != len(content):
        raise ValueError(f"there are {len(content)} bytes for {sum(sizes)}")
    ends = np.cumsum(sizes, dtype=np.int64)
    for end, size in zip(ends, sizes, strict=True):
        yield content[end - size : end]

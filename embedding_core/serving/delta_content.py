"""Parses and checks the content of a delta in the graph of an exported model, and writes it to the variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.serving.changing_tokens import GONE, ChangingTokenTable
from embedding_core.serving.row_formats import decoded
from embedding_core.serving.served_state import Layout, TableLayout

_DECODED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.bool)


class Rows(NamedTuple):
    """The changed rows of a table: positions `[n]` in its block, and values `[n, dim]`."""

    places: tf.Tensor
    values: tf.Tensor


class Tokens(NamedTuple):
    """New values of the variables of a `ChangingTokenTable`."""

    hashes: tf.Tensor
    changed: tf.Tensor
    places: tf.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """A parsed delta, ready to be written."""

    rows: Mapping[str, Rows]
    tokens: Mapping[str, Tokens]
    dense: Sequence[tf.Tensor]


def first_reason(*rules: tuple[tf.Tensor, str]) -> tf.Tensor:
    """Return the text of the first rule whose tensor is true, which means broken; "" if there is none."""
    reason = tf.constant("")
    for broken, text in reversed(rules):
        reason = tf.where(broken, tf.constant(text), reason)
    return reason


class Content:
    """The content that deltas of one export can have."""

    def __init__(
        self,
        layout: Layout,
        blocks: Mapping[str, tf.Variable],
        tokens: Mapping[str, ChangingTokenTable],
        dense: Sequence[tf.Variable],
    ) -> None:
        """Hold the variables that deltas write to.

        Raises:
          ConfigError: a dense variable has a type that a delta cannot hold.
        """
        self._layout, self._blocks, self._tokens, self._dense = layout, blocks, tokens, dense
        for variable in dense:
            if variable.dtype not in _DECODED:
                raise ConfigError(
                    f"variable {variable.name!r} of the model is {variable.dtype.name}: deltas hold "
                    f"{', '.join(dtype.name for dtype in _DECODED)}; set `push.deltas: false`."
                )

    def parse(self, delta: tf.Tensor) -> tuple[Parts, tf.Tensor]:
        """Parse a delta; return it, and "" or why it must not be written."""
        found = tf.io.parse_single_example(delta, self._features())
        rows, tokens, rules = {}, {}, []
        for number, table in enumerate(self._layout.tables):
            rows[table.name], sound = self._rows(table, found[f"rows/{number}"], found[f"values/{number}"])
            rules.append((~sound, f"rows of table {table.name!r} are not in it, or are not finite"))
            if table.name in self._tokens:
                names = found[f"tokens/{number}"]
                tokens[table.name], sound = self._changed(table, names, found[f"token_rows/{number}"])
                rules.append((~sound, f"tokens of table {table.name!r} have no row, or one hash"))
        dense = []
        for number, variable in enumerate(self._dense):
            value, sound = _dense(variable, found[f"dense/{number}"])
            dense.append(value)
            rules.append((~sound, f"dense weights {number} have another shape, or are not finite"))
        return Parts(rows=rows, tokens=tokens, dense=dense), first_reason(*rules)

    def write(self, parts: Parts) -> list[Any]:
        """Write a delta; return the operations that do."""
        written = []
        for table in self._layout.tables:
            block, rows = self._blocks[table.block], parts.rows[table.name]
            written.append(
                tf.raw_ops.ResourceScatterUpdate(resource=block.handle, indices=rows.places, updates=rows.values)
            )
        for name, values in parts.tokens.items():
            one = self._tokens[name]
            for variable, value in zip((one.hashes, one.changed, one.places), values, strict=True):
                written.append(variable.assign(value, read_value=False))
        return written + [
            variable.assign(value, read_value=False) for variable, value in zip(self._dense, parts.dense, strict=True)
        ]

    def _features(self) -> dict[str, Any]:
        features: dict[str, Any] = {}
        one = tf.io.FixedLenFeature([], tf.string, "")
        for number, table in enumerate(self._layout.tables):
            features |= {f"rows/{number}": one, f"values/{number}": one}
            if table.name in self._tokens:
                features |= {f"tokens/{number}": tf.io.RaggedFeature(tf.string), f"token_rows/{number}": one}
        return {**features, **{f"dense/{number}": one for number in range(len(self._dense))}}

    def _rows(self, table: TableLayout, rows: tf.Tensor, values: tf.Tensor) -> tuple[Rows, tf.Tensor]:
        block = self._blocks[table.block]
        dim = int(block.shape[1])
        counted = tf.equal(tf.strings.length(values), tf.strings.length(rows) // 4 * dim * block.dtype.size)
        sized = counted & tf.equal(tf.strings.length(rows) % 4, 0)
        places = _numbers(rows, tf.int32, sized)
        found = tf.reshape(_numbers(values, block.dtype, sized), [-1, dim])
        inside = tf.reduce_all((places >= 0) & (places < table.capacity)) & tf.reduce_all(places[1:] > places[:-1])
        return Rows(places + table.start, found), sized & inside & _finite(decoded(found))

    def _changed(self, table: TableLayout, tokens: tf.Tensor, rows: tf.Tensor) -> tuple[Tokens, tf.Tensor]:
        sized = tf.equal(tf.strings.length(rows), 4 * tf.size(tokens))
        names = tf.cond(sized, lambda: tokens, lambda: tokens[:0])
        places = tf.cast(_numbers(rows, tf.int32, sized), tf.int64)
        first = table.tokens or 0
        unknown = (places >= first) & (places < first + table.oov_rows)
        inside = (places >= GONE) & (places < table.capacity) & ~unknown
        *values, sound = self._tokens[table.name].merged(names, places)
        named = tf.reduce_all(tf.strings.length(names) > 0)
        return Tokens(*values), sized & named & tf.reduce_all(inside) & sound


def _numbers(content: tf.Tensor, dtype: tf.DType, sized: tf.Tensor) -> tf.Tensor:
    """Decode numbers; none if the content does not have the right number of bytes."""
    return tf.io.decode_raw(tf.cond(sized, lambda: content, lambda: tf.constant("")), dtype)


def _dense(variable: tf.Variable, content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the new value of a dense variable, which is the old one if the delta does not have it."""
    size = variable.shape.num_elements() * np.dtype(variable.dtype.as_numpy_dtype).itemsize
    given = tf.equal(tf.strings.length(content), size)

    def decoded() -> tf.Tensor:
        return tf.reshape(tf.io.decode_raw(content, variable.dtype), variable.shape)

    value = tf.cond(given, decoded, variable.read_value)
    return value, (given | tf.equal(content, "")) & _finite(value)


def _finite(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(values)) if values.dtype.is_floating else tf.constant(True)

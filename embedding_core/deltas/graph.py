"""Builds the part of an exported model that takes deltas: parses and checks them, applies them, and guards requests.

Writing is guarded by a sequence lock. `sequence` is odd while a delta is written. A request reads it before and after
it computes its answer, and computes again if it was odd or has changed. Writers exclude each other by a mutex.
Everything is checked before `sequence` becomes odd, so that nothing fails in between. If a server ends a writing
request in the middle (at a deadline), `sequence` stays odd and requests fail until the same delta is applied again;
each of its writes sets a value, so repeating them is safe, and the digest is written last.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from embedding_core.deltas.content import BITS, COUNTS, DENSE, NUMBERS, TOKENS, VALUES
from embedding_core.deltas.protocol import APPLY_DELTA, MODEL_DIGEST
from embedding_core.deltas.served_state import GONE, ChangingTokenTable, Layout, TableLayout
from embedding_core.errors import ConfigError
from embedding_core.serving.lookups import decoded
from embedding_core.serving.serving_module import ServingModule

# Parses and checks the content of a delta in the graph of an exported model, and writes it to the variables.

_DECODED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.bool)
_GROUPS = BITS // 7


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
        found = tf.io.parse_single_example(
            delta, {name: tf.io.FixedLenFeature([], tf.string, "") for name in (NUMBERS, VALUES, TOKENS, DENSE)}
        )
        numbers, sound = _varints(found[NUMBERS])
        counts, lists, sized = _lists(numbers, len(self._layout.tables))
        sound &= sized
        values, sized = _parts(found[VALUES], counts[:, 0] * [self._row_bytes(table) for table in self._layout.tables])
        sound &= sized
        names, sized = _tokens(found[TOKENS], counts[:, 1:])
        sound &= sized
        dense, sized = self._weights(tf.cumsum(lists[-1]), found[DENSE])
        rules = [(~(sound & sized), "its numbers, rows, tokens and weights do not fit together")]
        rows, tokens = {}, {}
        for number, table in enumerate(self._layout.tables):
            rows[table.name], sound = self._rows(table, tf.cumsum(lists[2 * number]), values[number])
            rules.append((~sound, f"rows of table {table.name!r} are not in it, or are not finite"))
            if table.name in self._tokens:
                came = tf.cumsum(lists[2 * number + 1])
                tokens[table.name], sound = self._changed(table, names[number], came)
                rules.append((~sound, f"tokens of table {table.name!r} have no row, or one hash"))
            else:
                rules.append((tf.size(names[number]) > 0, f"table {table.name!r} has no tokens"))
        rules += [(~_finite(value), f"dense weights {number} are not finite") for number, value in enumerate(dense)]
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
            tokens = self._tokens[name]
            for variable, value in zip((tokens.hashes, tokens.changed, tokens.places), values, strict=True):
                written.append(variable.assign(value, read_value=False))
        return written + [
            variable.assign(value, read_value=False) for variable, value in zip(self._dense, parts.dense, strict=True)
        ]

    def _row_bytes(self, table: TableLayout) -> int:
        block = self._blocks[table.block]
        return int(block.shape[1]) * int(block.dtype.size)

    def _rows(self, table: TableLayout, places: tf.Tensor, values: tf.Tensor) -> tuple[Rows, tf.Tensor]:
        block = self._blocks[table.block]
        found = tf.reshape(tf.io.decode_raw(values, block.dtype), [-1, int(block.shape[1])])
        inside = _ascending(places, table.capacity)
        return Rows(places + table.start, found), inside & _finite(decoded(found))

    def _changed(self, table: TableLayout, tokens: tf.Tensor, came: tf.Tensor) -> tuple[Tokens, tf.Tensor]:
        first = table.tokens or 0
        came = came[: tf.size(tokens)]  # a delta that is refused for its sizes may have fewer tokens than rows for them
        inside = _ascending(came, table.capacity) & ~tf.reduce_any((came >= first) & (came < first + table.oov_rows))
        went = tf.fill([tf.size(tokens) - tf.size(came)], tf.constant(GONE, tf.int64))
        *values, sound = self._tokens[table.name].merged(tokens, tf.concat([came, went], 0))
        named = tf.reduce_all(tf.strings.length(tokens) > 0)
        return Tokens(*values), named & inside & sound

    def _weights(self, changed: tf.Tensor, content: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the new value of each dense variable, which is the old one if the delta does not have it."""
        if not self._dense:
            return [], tf.equal(tf.size(changed), 0) & tf.equal(content, "")
        sizes = [
            variable.shape.num_elements() * np.dtype(variable.dtype.as_numpy_dtype).itemsize for variable in self._dense
        ]
        given = tf.reduce_any(changed[:, None] == tf.range(len(sizes), dtype=tf.int64), 0)
        parts, sized = _parts(content, tf.where(given, tf.constant(sizes, tf.int64), 0))

        def value(number: int, variable: tf.Variable) -> tf.Tensor:
            def new() -> tf.Tensor:
                return tf.reshape(tf.io.decode_raw(parts[number], variable.dtype), variable.shape)

            return tf.cond(given[number] & sized, new, variable.read_value)

        return list(itertools.starmap(value, enumerate(self._dense))), sized & _ascending(changed, len(sizes))


def _varints(content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode varints; return the numbers, int64 `[n]` of at most 35 bits, and whether all bytes are such numbers."""
    groups = tf.cast(tf.io.decode_raw(content, tf.uint8), tf.int64)
    ends = groups < 128
    number = tf.cumsum(tf.cast(ends, tf.int64), exclusive=True)
    count = tf.math.count_nonzero(ends)
    places = tf.range(tf.size(groups, tf.int64))
    places -= tf.gather(tf.math.unsorted_segment_min(places, number, count + 1), number)
    parts = tf.bitwise.left_shift(groups % 128, 7 * tf.minimum(places, _GROUPS - 1))
    sound = tf.reduce_all(places < _GROUPS) & tf.reduce_all(ends[-1:])
    return tf.math.unsorted_segment_sum(parts, number, count + 1)[:count], sound


def _lists(numbers: tf.Tensor, tables: int) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """Split the numbers of a delta.

    Returns:
      The counts `[tables, 3]`; the lists of gaps, two for each table and that of the dense variables; and whether there
      are as many numbers as the counts say. If not, all are 0 and empty.
    """
    head = COUNTS * tables + 1
    counts = tf.concat([numbers, tf.zeros([head], tf.int64)], 0)[:head]
    sized = tf.equal(tf.reduce_sum(counts) - tf.reduce_sum(counts[2:-1:COUNTS]) + head, tf.size(numbers, tf.int64))
    counts = tf.where(sized, counts, 0)
    by_table = tf.reshape(counts[:-1], [tables, COUNTS])
    lengths = tf.concat([tf.reshape(by_table[:, :2], [-1]), counts[-1:]], 0)
    return by_table, tf.split(numbers[head : head + tf.reduce_sum(lengths)], lengths, num=2 * tables + 1), sized


def _parts(content: tf.Tensor, sizes: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Split bytes by sizes `[n]`; return the parts, and whether they are the whole. If not, the parts are empty."""
    sized = tf.equal(tf.reduce_sum(sizes), tf.cast(tf.strings.length(content), tf.int64))
    sizes = tf.where(sized, sizes, 0)
    places = zip(tf.unstack(tf.cumsum(sizes, exclusive=True)), tf.unstack(sizes), strict=True)
    return [tf.strings.substr(content, start, size) for start, size in places], sized


def _tokens(content: tf.Tensor, counts: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Split tokens by table; return them, and whether their number is that of the counts `[tables, 2]`."""
    names = tf.strings.split(content, "\n")[:-1]
    counts = tf.reduce_sum(counts, 1)
    sized = tf.equal(tf.reduce_sum(counts), tf.size(names, tf.int64))
    counts = tf.where(sized, counts, 0)
    return tf.split(names[: tf.reduce_sum(counts)], counts, num=counts.shape[0]), sized


def _ascending(numbers: tf.Tensor, upto: int) -> tf.Tensor:
    """Return whether numbers are ascending, at least 0 and below a limit."""
    return tf.reduce_all((numbers >= 0) & (numbers < upto)) & tf.reduce_all(numbers[1:] > numbers[:-1])


def _finite(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(values)) if values.dtype.is_floating else tf.constant(True)


# Builds the part of an exported model that takes deltas: the signature `apply_delta`, and requests that see one state.

_BUCKETS = 2**63 - 1
_HASHES = 4
_PATIENCE = 10.0  # seconds that a request waits for a writer
_CPU = "/device:CPU:0"


def checksum(key: tuple[int, int], number: int, base: str, digest: str, delta: bytes) -> str:
    """Compute the checksum of a delta for one export, as the graph does."""
    given = (tf.constant(number, tf.int64), tf.constant(base), tf.constant(digest), tf.constant(delta))
    return str(_checksum(key, *given).numpy().decode())


def _checksum(
    key: tuple[int, int], number: tf.Tensor, base: tf.Tensor, digest: tf.Tensor, delta: tf.Tensor
) -> tf.Tensor:
    joined = tf.strings.join([tf.strings.as_string(number), base, digest, delta], separator="\n")
    return tf.strings.as_string(tf.strings.to_hash_bucket_strong(joined, _BUCKETS, list(key)))


def random_key() -> tuple[int, int]:
    """Draw a key of TensorFlow's strong hash."""
    drawn = os.urandom(16)
    return int.from_bytes(drawn[:8], "big") >> 1, int.from_bytes(drawn[8:], "big") >> 1


class DeltaState(tf.Module):
    """The variables of an exported model that deltas change besides its rows, tokens and weights.

    Attributes:
      sequence: int64, odd while a delta is written.
      digest: string, the digest of what is served.
      number: int64, the number of the last delta that was applied; 0 for the export.
      layout: what the export says about itself.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        with tf.device(_CPU):
            self.sequence = tf.Variable(0, dtype=tf.int64, trainable=False, name="sequence")
            self.digest = tf.Variable("", dtype=tf.string, trainable=False, name="digest")
            self.number = tf.Variable(0, dtype=tf.int64, trainable=False, name="number")

    def guarded(self, signature: Any) -> Any:
        """Let a signature compute its answer from one state, and return the digest of this state for each row.

        Args:
          signature: a concrete function with keyword inputs whose first dimension is the batch.

        Returns:
          A concrete function with the same inputs, and the output `model_digest` besides the others.
        """
        positional, keywords = signature.structured_input_signature
        specs: Mapping[str, tf.TensorSpec] = {**{spec.name: spec for spec in positional}, **keywords}
        outputs = signature.structured_outputs

        def attempt(named: Mapping[str, tf.Tensor]) -> Callable[..., list[tf.Tensor]]:
            def answer() -> list[tf.Tensor]:
                found = signature(**named)
                return [self.digest.read_value(), *(found[name] for name in outputs)]

            def once(_: tf.Tensor, *last: tf.Tensor) -> list[tf.Tensor]:
                before = self.sequence.read_value()
                even = tf.equal(before % 2, 0)
                with tf.control_dependencies([before]):  # an answer that would be lost must not count its invalid ids
                    found = tf.cond(even, answer, lambda: [tf.identity(value) for value in last])
                with tf.control_dependencies(found):
                    after = self.sequence.read_value()
                return [tf.equal(before, after) & even, *found]

            return once

        def compute(**named: tf.Tensor) -> dict[str, tf.Tensor]:
            end = tf.timestamp() + _PATIENCE
            empty = [tf.zeros([size or 0 for size in output.shape], output.dtype) for output in outputs.values()]
            seen, digest, *found = tf.while_loop(
                lambda seen, *_: tf.logical_not(seen) & (tf.timestamp() < end),
                attempt(named),
                [tf.constant(False), tf.constant(""), *empty],
                shape_invariants=[
                    tf.TensorShape([]),
                    tf.TensorShape([]),
                    *(output.shape for output in outputs.values()),
                ],
                parallel_iterations=1,
            )
            check = tf.debugging.Assert(seen, ["a delta was written only in part: apply it again"])
            batch = tf.shape(next(iter(named.values())))[:1]
            with tf.control_dependencies([check]):
                answers = {name: tf.identity(answer) for name, answer in zip(outputs, found, strict=True)}
                return {**answers, MODEL_DIGEST: tf.fill(batch, digest)}

        return tf.function(compute, autograph=False).get_concrete_function(**specs)


def apply_signature(module: ServingModule, state: DeltaState, secret: bytes) -> Any:
    """Make the signature `apply_delta`.

    It takes the int64 `number` and the strings `base`, `digest`, `checksum`, `delta` and `secret`, all scalars. It
    returns `applied` (1 or 0), `reason` ("" or why the delta was refused, and nothing changed), and `number` and
    `model_digest` of what is served afterwards. `number` 0 asks for these two.
    """
    keys = [random_key() for _ in range(_HASHES)]
    hashes = tf.constant(_hashes_of(tf.constant(secret), keys).numpy())
    layout = state.layout
    content = Content(layout, module.tables, _changing(module), module.dense_variables)

    def write(parts: Parts, number: tf.Tensor, digest: tf.Tensor) -> tf.Tensor:
        odd = state.sequence.assign(tf.bitwise.bitwise_or(state.sequence.read_value(), 1), read_value=False)
        with tf.control_dependencies([odd]):
            written = content.write(parts)
        with tf.control_dependencies(written):
            named = [state.digest.assign(digest, read_value=False), state.number.assign(number, read_value=False)]
        with tf.control_dependencies(named):
            even = state.sequence.assign_add(1, read_value=False)
        with tf.control_dependencies([even]):
            return tf.constant("")

    def refuse_or_write(number: tf.Tensor, digest: tf.Tensor, delta: tf.Tensor) -> tf.Tensor:
        parts, wrong = content.parse(delta)
        return tf.cond(tf.equal(wrong, ""), lambda: write(parts, number, digest), lambda: wrong)

    def compute(
        number: tf.Tensor,
        base: tf.Tensor,
        digest: tf.Tensor,
        checksum: tf.Tensor,
        delta: tf.Tensor,
        secret: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(shared_name=APPLY_DELTA))
        with tf.control_dependencies([lock]):
            current, last = state.digest.read_value(), state.number.read_value()
        wrong = first_reason(
            (tf.equal(number, 0), "nothing was given"),
            (tf.reduce_any(_hashes_of(secret, keys) != hashes), "the secret is wrong"),
            (
                _checksum(layout.checksum_key, number, base, digest, delta) != checksum,
                "it is damaged, or for another export",
            ),
            (number <= last, "it was applied before"),
            (number > last + 1, "a delta before it is missing"),
            (tf.not_equal(base, current), "its base is not what is served"),
        )
        with tf.control_dependencies([current, last]):
            reason = tf.cond(tf.equal(wrong, ""), lambda: refuse_or_write(number, digest, delta), lambda: wrong)
        with tf.control_dependencies([reason]):
            served = {"number": state.number.read_value(), MODEL_DIGEST: state.digest.read_value()}
        with tf.control_dependencies(list(served.values())):
            tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        return {"applied": tf.cast(tf.equal(reason, ""), tf.int64), "reason": reason, **served}

    specs = {name: tf.TensorSpec([], tf.string, name) for name in ("base", "digest", "checksum", "delta", "secret")}
    signature = tf.function(compute, autograph=False)
    return signature.get_concrete_function(number=tf.TensorSpec([], tf.int64, "number"), **specs)


def _hashes_of(secret: tf.Tensor, keys: list[tuple[int, int]]) -> tf.Tensor:
    return tf.stack([tf.strings.to_hash_bucket_strong(secret, _BUCKETS, list(key)) for key in keys])


def _changing(module: ServingModule) -> dict[str, ChangingTokenTable]:
    return {name: table for name, table in module.token_tables.items() if isinstance(table, ChangingTokenTable)}

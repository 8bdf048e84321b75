"""Builds the part of an exported model that takes deltas: the signature `apply_delta`, and requests that see one state.

Writing is guarded by a sequence lock. `sequence` is odd while a delta is written. A request reads it before and after
it computes its answer, and computes again if it was odd or has changed. Writers exclude each other by a mutex.
Everything is checked before `sequence` becomes odd, so that nothing fails in between. If a server ends a writing
request in the middle (at a deadline), `sequence` stays odd and requests fail until the same delta is applied again;
each of its writes sets a value, so repeating them is safe, and the digest is written last.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from embedding_core.delta_protocol import APPLY_DELTA, MODEL_DIGEST, require_secret
from embedding_core.serving.changing_tokens import ChangingTokenTable
from embedding_core.serving.delta_content import Content, Parts, first_reason
from embedding_core.serving.served_state import Layout
from embedding_core.serving.serving_module import ServingModule

_BUCKETS = 2**63 - 1
_HASHES = 4
_PATIENCE = 10.0  # seconds that a request waits for a writer
_CPU = "/device:CPU:0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaExport:
    """How a model is exported that takes deltas.

    Attributes:
      secret: what a request must give to change the model, at least 16 bytes. Only salted hashes of it are written.
      spare_rows: share of the tokens of each table that spare rows are exported for, which new tokens get.
      min_spare_rows: the least number of spare rows of a table.
    """

    secret: bytes = dataclasses.field(repr=False)
    spare_rows: float = 0.1
    min_spare_rows: int = 64

    def __post_init__(self) -> None:
        """Refuse a secret that is easily guessed."""
        require_secret(self.secret)

    def spare_of(self, tokens: int) -> int:
        """Return the number of spare rows of a table."""
        return max(self.min_spare_rows, math.ceil(self.spare_rows * tokens))


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
    """

    def __init__(self) -> None:
        super().__init__()
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
        specs: Mapping[str, tf.TensorSpec] = {**{one.name: one for one in positional}, **keywords}
        outputs = signature.structured_outputs

        def attempt(named: Mapping[str, tf.Tensor]) -> Callable[..., list[tf.Tensor]]:
            def once(*_: tf.Tensor) -> list[tf.Tensor]:
                before = self.sequence.read_value()
                with tf.control_dependencies([before]):
                    digest = self.digest.read_value()
                    found = signature(**named)
                with tf.control_dependencies([digest, *found.values()]):
                    after = self.sequence.read_value()
                seen = tf.equal(before, after) & tf.equal(before % 2, 0)
                return [seen, digest, *(found[name] for name in outputs)]

            return once

        def compute(**named: tf.Tensor) -> dict[str, tf.Tensor]:
            end = tf.timestamp() + _PATIENCE
            empty = [tf.zeros([size or 0 for size in one.shape], one.dtype) for one in outputs.values()]
            seen, digest, *found = tf.while_loop(
                lambda seen, *_: tf.logical_not(seen) & (tf.timestamp() < end),
                attempt(named),
                [tf.constant(False), tf.constant(""), *empty],
                shape_invariants=[tf.TensorShape([]), tf.TensorShape([]), *(one.shape for one in outputs.values())],
                parallel_iterations=1,
            )
            check = tf.debugging.Assert(seen, ["a delta was written only in part: apply it again"])
            batch = tf.shape(next(iter(named.values())))[:1]
            with tf.control_dependencies([check]):
                answers = {name: tf.identity(one) for name, one in zip(outputs, found, strict=True)}
                return {**answers, MODEL_DIGEST: tf.fill(batch, digest)}

        return tf.function(compute, autograph=False).get_concrete_function(**specs)


def apply_signature(module: ServingModule, state: DeltaState, layout: Layout, secret: bytes) -> Any:
    """Make the signature `apply_delta`.

    It takes the int64 `number` and the strings `base`, `digest`, `checksum`, `delta` and `secret`, all scalars. It
    returns `applied` (1 or 0), `reason` ("" or why the delta was refused, and nothing changed), and `number` and
    `model_digest` of what is served afterwards. `number` 0 asks for these two.
    """
    keys = [random_key() for _ in range(_HASHES)]
    hashes = tf.constant(_hashes_of(tf.constant(secret), keys).numpy())
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
    return {name: one for name, one in module.token_tables.items() if isinstance(one, ChangingTokenTable)}

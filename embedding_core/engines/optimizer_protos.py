"""Replaces a bool in TensorFlow's optimizers by the enum number that protobuf 7 requires.

TensorFlow (2.16 to 2.21) assigns `low_dimensional_packing_status`, a bool, to an enum field of a proto. protobuf 4 to 6
convert it to the enum's number. protobuf 7, which TensorFlow 2.20 and 2.21 allow, raises TypeError, so no TPUEmbedding
could be built. The number has the same meaning.
"""

from __future__ import annotations

import copy

from embedding_core.translate import GivenOptimizer

_ENUM = "low_dimensional_packing_status"


def with_enum_numbers(optimizer: GivenOptimizer) -> GivenOptimizer:
    """Return the optimizer; if `low_dimensional_packing_status` is a bool, return a copy that has the number instead.

    Args:
      optimizer: optimizer of `tf.tpu.experimental.embedding`; any other is returned unchanged.
    """
    if not isinstance(getattr(optimizer, _ENUM, None), bool):
        return optimizer
    numbered = copy.copy(optimizer)
    setattr(numbered, _ENUM, int(getattr(optimizer, _ENUM)))
    return numbered

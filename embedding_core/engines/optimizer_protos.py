"""Gives TensorFlow's optimizers the values that the installed protobuf accepts in their protos.

TensorFlow (2.16 to 2.21) assigns `low_dimensional_packing_status`, a bool, to a field that is an enum. protobuf 4 to 6
take it for the number of the enum; protobuf 7, which TensorFlow 2.20 and 2.21 allow, raises TypeError, so that no
TPUEmbedding could be built. The number means the same.
"""

from __future__ import annotations

import copy

from embedding_core.translate import GivenOptimizer

_ENUM = "low_dimensional_packing_status"


def with_enum_numbers(optimizer: GivenOptimizer) -> GivenOptimizer:
    """Return the optimizer, or a copy of it that has the number of an enum in place of a bool.

    Args:
      optimizer: optimizer of `tf.tpu.experimental.embedding`; any other is returned as it is.
    """
    if not isinstance(getattr(optimizer, _ENUM, None), bool):
        return optimizer
    numbered = copy.copy(optimizer)
    setattr(numbered, _ENUM, int(getattr(optimizer, _ENUM)))
    return numbered

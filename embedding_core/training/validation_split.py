"""Holds back a part of the train split, by which early stopping chooses the step: the eval split is for the report.

A row is in it or not by a hash of its bytes alone, so that every host, every resume and every epoch agree, and equal
rows stay together. The rows are never trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

Keep: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
_BUCKETS = 1 << 20


def parts_of(fraction: float) -> tuple[Keep, Keep]:
    """Give the filters of serialized rows to train on and of those to validate by.

    Args:
      fraction: expected share of the latter.
    """
    bound = round(fraction * _BUCKETS)

    def held_back(serialized: tf.Tensor) -> tf.Tensor:
        return tf.strings.to_hash_bucket_fast(serialized, _BUCKETS) < bound

    return lambda serialized: ~held_back(serialized), held_back

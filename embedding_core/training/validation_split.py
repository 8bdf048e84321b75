"""Holds back a part of the train split for early stopping; the eval split is for the report.

A hash of a row's bytes alone decides whether the row is held back, so that every host, every resume and every epoch
agree, and equal rows stay together. Training sees the held-back rows only after early stopping has chosen a
state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

Keep: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
_BUCKETS = 1 << 20


def split_filters(fraction: float) -> tuple[Keep, Keep]:
    """Make the filters of serialized rows, string `[n]`, for training and for validation.

    Args:
      fraction: expected share of validation rows.
    """
    bound = round(fraction * _BUCKETS)

    def held_back(serialized: tf.Tensor) -> tf.Tensor:
        return tf.strings.to_hash_bucket_fast(serialized, _BUCKETS) < bound

    return lambda serialized: ~held_back(serialized), held_back

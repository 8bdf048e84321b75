"""What Transform does in the taxi example: the label, and cells of the map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipelines.preprocessing import checked_label, dense_features, fill_missing

__all__ = ["preprocessing_fn"]


def preprocessing_fn(inputs: Mapping[str, Any], custom_config: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Dense features, the label and the cells where a trip starts and ends.

    Returns:
      the dense features as float32 [B, 1]; `big_tip`, float32 [B, 1]: 1 where the tip is above 20% of the fare, as
      in TFX's example (a missing amount counts as 0 there too); `pickup_cell` and `dropoff_cell`, text [B, 1].
    """
    outputs = dense_features(inputs, custom_config)
    fare = fill_missing(inputs["fare"], 0.0, "fare", dtype=tf.float32)
    tips = fill_missing(inputs["tips"], 0.0, "tips", dtype=tf.float32)
    outputs["big_tip"] = checked_label(tips > fare * 0.2, "big_tip")
    for end in ("pickup", "dropoff"):
        outputs[f"{end}_cell"] = _cell(inputs[f"{end}_latitude"], inputs[f"{end}_longitude"])
    return outputs


def _cell(latitude: Any, longitude: Any) -> tf.Tensor:
    """Both degrees to two places, as "41.98,-87.80": about 1 km; empty where one is missing. Shape [B, 1]."""
    degrees = [
        fill_missing(degree, float("nan"), name, dtype=tf.float32)
        for degree, name in ((latitude, "latitude"), (longitude, "longitude"))
    ]
    known = tf.math.is_finite(degrees[0]) & tf.math.is_finite(degrees[1])
    cell = tf.strings.join([tf.strings.as_string(degree, precision=2) for degree in degrees], separator=",")
    return tf.where(known, cell, tf.zeros_like(cell))

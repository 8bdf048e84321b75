"""Computes the label and the map cells of the taxi example, in Transform."""

from __future__ import annotations

import tensorflow as tf

from pipelines.preprocessing import Column, Inputs, Settings, checked_label, dense_features, fill_missing


def preprocessing_fn(inputs: Inputs, custom_config: Settings) -> dict[str, tf.Tensor]:
    """Return the dense features, the label and the cells of a trip's start and end.

    Returns:
      the dense features as float32 [B, 1]; `big_tip`, float32 [B, 1]: 1 if the tip is above 20% of the fare, as in
      TFX's example (which also counts a missing amount as 0); `pickup_cell` and `dropoff_cell`, text [B, 1].
    """
    outputs = dense_features(inputs, custom_config)
    fare = fill_missing(inputs["fare"], 0.0, "fare", dtype=tf.float32)
    tips = fill_missing(inputs["tips"], 0.0, "tips", dtype=tf.float32)
    outputs["big_tip"] = checked_label(tips > fare * 0.2, "big_tip")
    for end in ("pickup", "dropoff"):
        outputs[f"{end}_cell"] = _cell(inputs[f"{end}_latitude"], inputs[f"{end}_longitude"])
    return outputs


def _cell(latitude: Column, longitude: Column) -> tf.Tensor:
    """Join the degrees with two decimals, as "41.98,-87.80" (about 1 km); empty if one is missing. Shape [B, 1]."""
    degrees = [
        fill_missing(degree, float("nan"), name, dtype=tf.float32)
        for degree, name in ((latitude, "latitude"), (longitude, "longitude"))
    ]
    known = tf.math.is_finite(degrees[0]) & tf.math.is_finite(degrees[1])
    cell = tf.strings.join([tf.strings.as_string(degree, precision=2) for degree in degrees], separator=",")
    return tf.where(known, cell, tf.zeros_like(cell))

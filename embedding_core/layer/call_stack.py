"""Finds out from the call stack who calls the layer for tf_keras, because Keras does not pass this on."""

from __future__ import annotations

import sys
from typing import Any

import tf_keras

from embedding_core.layer.keras_package import code_of, frames, module_of


def called_by_keras_3() -> bool:
    """Return whether code of Keras 3 is on the stack."""
    if not str(getattr(sys.modules.get("keras"), "__version__", "")).startswith("3"):
        return False
    return any(module_of(frame).startswith("keras.") for frame in frames())


_COMPILE = code_of(tf_keras.Model.compile)
_LISTS = {
    code_of(getattr(cls, name))
    for cls in (tf_keras.layers.Layer, tf_keras.Model)
    for name in ("get_weights", "set_weights")
}


def wants_weights_as_list() -> bool:
    """Return whether Keras copies weights by their order: `get_weights`, `set_weights`, or the `.h5` format."""
    for frame in frames():
        if frame.f_code is _COMPILE:  # reading .h5 calls `compile`, which only needs the variables' devices
            return False
        if frame.f_code in _LISTS or module_of(frame).endswith(".hdf5_format"):
            return True
    return False


def running_loss_scaler() -> Any:
    """Return the LossScaleOptimizer that computes gradients now, as in `model.fit` and `minimize`; else None."""
    owners = (frame.f_locals.get("self") for frame in frames())
    scaling = tf_keras.mixed_precision.LossScaleOptimizer
    return next((owner for owner in owners if isinstance(owner, scaling)), None)

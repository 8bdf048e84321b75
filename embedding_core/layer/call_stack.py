"""Finds out from the call stack who calls the layer, because Keras does not pass this on."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import tf_keras


def _frames() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def called_by_keras_3() -> bool:
    """Return whether code of Keras 3 is on the stack."""
    if not str(getattr(sys.modules.get("keras"), "__version__", "")).startswith("3"):
        return False
    return any(_module(frame).startswith("keras.") for frame in _frames())


def _code(method: Any) -> CodeType:
    code: CodeType = inspect.unwrap(method).__code__
    return code


_COMPILE = _code(tf_keras.Model.compile)
_LISTS = {
    _code(getattr(cls, name))
    for cls in (tf_keras.layers.Layer, tf_keras.Model)
    for name in ("get_weights", "set_weights")
}


def wants_weights_as_list() -> bool:
    """Return whether Keras copies weights by their order: `get_weights`, `set_weights`, or the `.h5` format."""
    for frame in _frames():
        if frame.f_code is _COMPILE:  # reading .h5 calls `compile`, which only needs the variables' devices
            return False
        if frame.f_code in _LISTS or _module(frame).endswith(".hdf5_format"):
            return True
    return False


def running_loss_scaler() -> Any:
    """Return the LossScaleOptimizer that computes gradients now, as in `model.fit` and `minimize`; else None."""
    owners = (frame.f_locals.get("self") for frame in _frames())
    scaling = tf_keras.mixed_precision.LossScaleOptimizer
    return next((owner for owner in owners if isinstance(owner, scaling)), None)

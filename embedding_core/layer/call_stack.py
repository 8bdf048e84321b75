"""Finds out from the call stack who calls the layer, because Keras does not pass this on."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import tf_keras

_OF_KERAS = ("tf_keras.", "tensorflow.")


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


def _is_loss_scaler(value: object) -> bool:
    return isinstance(value, tf_keras.mixed_precision.LossScaleOptimizer)


def running_loss_scaler() -> Any:
    """Return the LossScaleOptimizer that computes gradients now, as in `model.fit` and `minimize`; else None."""
    owners = (frame.f_locals.get("self") for frame in _frames())
    return next((value for value in owners if _is_loss_scaler(value)), None)


def known_loss_scaler() -> Any:
    """Find a LossScaleOptimizer among the variables of the functions on the stack, and their attributes; else None."""
    for frame in _frames():
        if _module(frame).startswith(_OF_KERAS):
            continue
        values = [*frame.f_locals.values(), *(frame.f_globals.get(name) for name in frame.f_code.co_names)]
        for value in values:
            if _is_loss_scaler(value):
                return value
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict):
                scaler = next((each for each in list(attributes.values()) if _is_loss_scaler(each)), None)
                if scaler is not None:
                    return scaler
    return None

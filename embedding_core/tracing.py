"""Keeps AutoGraph out of this package's functions when the caller's tf.function is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])


def as_written(function: Function) -> Function:
    """Return the function, kept from AutoGraph: it has no Python control flow over tensors, and traces faster so."""
    return cast(Function, tf.autograph.experimental.do_not_convert(function))

"""Keeps AutoGraph out of this package's functions and of Keras' own when a tf.function is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])


def as_written(function: Function) -> Function:
    """Return the function, kept from AutoGraph: it has no Python control flow over tensors, and traces faster so."""
    return cast(Function, tf.autograph.experimental.do_not_convert(function))


def calling_user_code(function: Function) -> Function:
    """Return the function as AutoGraph calls it without converting it, but with AutoGraph on for what it calls.

    AutoGraph cannot convert what has no Python code, such as `function.__call__`, and calls it. Inside, Keras asks
    AutoGraph to convert the layers that users wrote, and no others. Converting Keras' own code takes 8 CPU seconds.
    """
    return cast(Function, cast(Any, function).__call__)

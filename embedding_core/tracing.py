"""Stops AutoGraph from converting this package and Keras, and removes TensorFlow's internals from messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

_INTERNALS = re.compile(r"\{\{.*?\}\} ?| ?\[Op:\w+\]( name: ?)?| \[\[.*", re.DOTALL)

Function = TypeVar("Function", bound=Callable[..., Any])


def as_written(function: Function) -> Function:
    """Exclude a function from AutoGraph: it has no Python control flow over tensors, and traces faster unconverted."""
    return cast(Function, tf.autograph.experimental.do_not_convert(function))


def calling_user_code(function: Function) -> Function:
    """Exclude a function from AutoGraph, but leave AutoGraph on for what the function calls.

    AutoGraph cannot convert a callable without Python code, such as `function.__call__`, and calls it unconverted.
    Inside, Keras asks AutoGraph to convert the layers that users wrote, and no others. Converting Keras' own code
    takes 8 CPU seconds.
    """
    return cast(Function, cast(Any, function).__call__)


def without_internals(message: str) -> str:
    """Return TensorFlow's message in one line, without the names of nodes and operations."""
    return _INTERNALS.sub("", " ".join(message.split())).strip()

"""Keeps AutoGraph out of this package's functions and of Keras' own, and TensorFlow's internals out of messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

_INTERNALS = re.compile(r"\{\{.*?\}\} ?| ?\[Op:\w+\]( name: ?)?| \[\[.*", re.DOTALL)

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


def without_internals(message: str) -> str:
    """Return TensorFlow's message in one line, without the names of nodes and operations."""
    return _INTERNALS.sub("", " ".join(message.split())).strip()

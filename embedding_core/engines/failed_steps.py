"""Detects a failed step, so that the next step starts without anything that the failed one left behind.

A failure in eager code, or while a function is traced, raises an exception that the engine or the strategy sees. If a
tf.function fails while it runs, it stops somewhere between its calls of the engine, and neither sees the exception.
Therefore each traced call records its number within the function after it has run. The next function, or the next
eager call, checks whether the last function completed all of its calls.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from embedding_core.engines.tables import unmirrored


@dataclasses.dataclass(frozen=True)
class _Place:
    """A call of the engine within a function.

    Attributes:
      position: the number of the function and the number of the call within it, from 1.
      started: control inputs of the call's operations.
    """

    position: tuple[int, int]
    started: Sequence[tf.Operation]


class Steps:
    """Tracks the calls of an engine within each function, and how many of them the last function completed.

    Attributes:
      failures: the number of times that `clear` ran, int64 scalar variable.
    """

    def __init__(self, clear: Callable[[], None]):
        """Start with zero failures.

        Args:
          clear: drops what is pending in the engine; runs eagerly and inside tf.function.
        """
        self._clear = clear
        self._functions: weakref.WeakKeyDictionary[tf.Graph, list[int]] = weakref.WeakKeyDictionary()  # number, calls
        self._last, self._calls, self.failures = unmirrored(
            lambda: (
                tf.Variable([0, 0], trainable=False, dtype=tf.int64),  # position of the last call; eager ones have 0, 0
                tf.Variable([0], trainable=False, dtype=tf.int64, shape=[None]),  # calls, by number of the function
                tf.Variable(0, trainable=False, dtype=tf.int64),
            )
        )

    def failed(self) -> None:
        """Drop at once what is pending, even while a function is traced."""
        with tf.init_scope():
            self._drop()
            self._last.assign([0, 0])

    @contextlib.contextmanager
    def call(self) -> Iterator[list[tf.Operation]]:
        """Start a call of the engine; yield a list, to be filled with the operations that end the call."""
        place = self._begin()
        done: list[tf.Operation] = []
        with tf.control_dependencies(place.started if place else []):
            yield done
        if place is not None:
            with tf.control_dependencies(done):
                self._last.assign(place.position)

    def _begin(self) -> _Place | None:
        """Start a call of the engine; return its place if it is traced, else None."""
        if tf.executing_eagerly():
            if self._unfinished():
                self.failed()
            return None
        here = tf.compat.v1.get_default_graph()
        function, started = self._function_of(here)
        number, calls = self._functions[function]
        self._functions[function] = [number, calls + 1]
        with tf.init_scope():
            self._calls.scatter_nd_update([[number]], [calls + 1])
        if here is not function:  # in a loop, the previous call may be the last of the previous iteration
            started = [self._last.assign([number, calls])]
        return _Place((number, calls + 1), started)

    def _function_of(self, graph: tf.Graph) -> tuple[tf.Graph, list[tf.Operation]]:
        """Return the function that a graph is part of, and the control inputs of its first call."""
        around = _functions_around(graph)
        known = [function for function in around if function in self._functions]
        if known:
            return known[-1], []
        function = around[0]
        with tf.init_scope():
            number = int(tf.size(self._calls))
            self._calls.assign(tf.concat([self._calls, [0]], 0))
        self._functions[function] = [number, 0]
        if function is graph:
            return function, [self._started(number)]
        with function.as_default():
            self._started(number)
        return function, []

    def _started(self, number: int) -> tf.Operation:
        """Clear up at the start of a function, if the last one failed."""

        def drop() -> tf.Tensor:
            self._drop()
            return tf.constant(True)

        with tf.control_dependencies([tf.cond(self._unfinished(), drop, lambda: tf.constant(False))]):
            return self._last.assign([number, 0])

    def _unfinished(self) -> tf.Tensor:
        number, done = tf.unstack(self._last.read_value())
        return done < tf.gather(self._calls.read_value(), number)

    def _drop(self) -> None:
        self._clear()
        self.failures.assign_add(1)


def _functions_around(graph: tf.Graph) -> list[tf.Graph]:
    """List the tf.functions around a graph, the innermost first; branches and bodies of loops do not count."""
    graphs = []
    while graph is not None:
        if type(graph).__name__ == "FuncGraph" or getattr(graph, "outer_graph", None) is None:
            graphs.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return [graph for graph in graphs if hasattr(graph, "outer_graph")] or graphs

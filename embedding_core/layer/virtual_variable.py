"""Updates tables when the gradient of a virtual variable is computed.

Tables that an engine trains are not trainable variables, so a tape would not record a lookup. Therefore the lookup is
made to depend on a trainable weight of shape [1], which is zero. Computing its gradient passes the gradients of the
activations to the engine, once, and returns zero for the weight itself.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from embedding_core.engines.engine import Gradients
from embedding_core.errors import EngineError


def with_table_updates(
    helper: tf.Variable, look_up: Callable[[], list[tf.Tensor]], update: Callable[[Gradients], None], owner: str
) -> list[tf.Tensor]:
    """Call `look_up`, and pass the gradients of its activations to `update` when they are computed.

    The gradient must be computed in the graph of the lookup. In the graph of a tf.cond, a loop or another tf.function,
    TensorFlow would never run the update or could not build it, so the gradient fails there.

    Args:
      helper: the trainable weight [1].
      look_up: returns the activations.
      update: takes the gradients of the activations.
      owner: name of the layer, for messages.

    Raises:
      tf.errors.InvalidArgumentError: when the gradient runs, if it was computed in another graph.
      EngineError (RuntimeError): when a second gradient of one lookup is computed, as it would be a second update.
    """
    here = _graph()
    updates: list[bool] = []
    shapes: list[tf.TensorShape] = []

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def activations(weight: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., tf.Tensor]]:
        def gradient(*gradients: tf.Tensor) -> tf.Tensor:
            if _graph() is not here:
                return _refused(owner)
            if updates:
                raise EngineError(
                    f"Gradients through one lookup of layer {owner!r} were computed twice: its tables would be updated "
                    "twice, as every tape.gradient through the lookup updates them, whichever variables it is for. "
                    "Compute all gradients in one call, of the sum of the losses and for all variables together."
                )
            updates.append(True)
            # In TensorFlow the gradient of a concatenated tensor has lost its static shape.
            update([tf.ensure_shape(values, shape) for values, shape in zip(gradients, shapes, strict=True)])
            return tf.zeros_like(weight)

        looked_up = look_up()
        shapes[:] = [values.shape for values in looked_up]
        return looked_up, gradient

    looked_up = activations(helper)
    return list(looked_up) if isinstance(looked_up, list | tuple) else [looked_up]


def _graph() -> tf.Graph | None:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _refused(owner: str) -> tf.Tensor:
    """Return a gradient that fails when it runs; it uses no outer tensors, so that a SavedModel can hold it."""
    message = (
        f"The tables of layer {owner!r} cannot be trained from here: it was called inside tf.cond, a loop or another "
        "tf.function than the one that computes the gradient. Call the layer before, beside the GradientTape, and pass "
        "its activations in."
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), [message])]):
        return tf.identity(tf.zeros([1]))

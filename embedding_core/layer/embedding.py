"""Defines `TPUEmbedding` for tf_keras, a layer that looks up and trains embedding tables under any strategy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from embedding_core.engines.engine import Engine
from embedding_core.errors import EngineError
from embedding_core.layer.call_stack import wants_weights_as_list
from embedding_core.layer.engine_choice import KerasTables
from embedding_core.layer.keras_files import saved_variables
from embedding_core.layer.keras_optimizers import TF_KERAS, refuse_keras_3
from embedding_core.layer.layer_configs import Json
from embedding_core.layer.table_layer import TableLayer, in_scratch_graph
from embedding_core.structures import Nested
from embedding_core.tracing import as_written
from embedding_core.translate import Model

_HELPER = "tpu_embedding_helper_dummy"


@tf_keras.saving.register_keras_serializable("tfx_embeddings")
class TPUEmbedding(TableLayer, tf_keras.layers.Layer):
    """Looks up and combines rows of embedding tables; a drop-in for the layer of TensorFlow Recommenders.

    If the layer is created in the scope of a TPU's strategy (a real one, or `engines.simulated_tpu()`), the TPU's
    engine holds and trains the tables. `trainable_variables` then has one virtual variable, and computing its gradient
    updates the tables. On a TPU without an embedding engine the tables are `trainable_variables`. Off a TPU,
    `table_update` selects what trains the tables:

    * "keras", the default, as in TensorFlow Recommenders: the tables are `trainable_variables`, and the Keras
      optimizer that trains the model updates them.
    * "engine": the optimizer given to this layer updates the tables in the backward pass, by the TPU's update rules
      and by default only in the rows that the batch touched. A CPU or GPU then computes the same updates as the TPU,
      and the memory of a step is proportional to the batch. There is one virtual variable, as on a TPU.

    The results of "keras" and "engine" differ. After one step of Adam(0.1) from a weight of 1 with a gradient of 1,
    Keras, which corrects the bias of the moments, gives 0.900; the TPU, which does not, gives 0.684. Keras' Adam also
    changes rows that were not looked up.

    If the lookup is inside a tf.cond, a loop or a tf.function, compute the virtual variable's gradient inside it too;
    outside of it, the gradient raises an error. Every tape.gradient through a lookup updates the tables, whichever
    variables it is for: compute all gradients in one call (a second one through the same lookup fails), and set
    `trainable = False` to leave the tables unchanged. The weights of ids get no gradient.

    If `optimizer` is a Keras optimizer with a learning rate schedule, the tables follow its `iterations`, so a training
    loop must step it: use the optimizer that the model is compiled with. For loaded models see `keras_optimizer`.

    Ids are dense [B] or [B, 1], sparse or ragged; an activation is [B, dim], [B, max_sequence_length, dim] for
    a sequence, or the configured output shape and dim. Activations have the layer's compute dtype; tables
    are float32.
    """

    keras = TF_KERAS

    def _new_tables(self, model: Model, seed: int) -> Engine:
        return KerasTables(model, seed)

    def _helper(self) -> tf.Variable:
        return getattr(self, _HELPER)

    @as_written
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `call`."""
        inputs = tf.nest.flatten([args, kwargs])
        refuse_keras_3(self.name, inputs)
        before = self._state.symbolic
        self._state.symbolic = in_scratch_graph() or any(_is_keras_tensor(value) for value in inputs)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._state.symbolic = before

    def build(self, input_shape: Nested) -> None:
        """Create the variables.

        Args:
          input_shape: the per-replica shapes of the inputs, in the structure of `feature_config`, or None.
        """
        engine = self._build_engine(input_shape)
        if engine.trains_itself:
            helper = self.add_weight(name=_HELPER, shape=(1,), initializer="zeros", dtype=tf.float32)
            setattr(self, _HELPER, helper)
        else:  # Keras tracks variables that are attributes
            setattr(self, _HELPER, list(engine.tables_by_config().values()))
        super().build(input_shape)  # last, as it sets `built`: all replicas must create the variables together

    @property
    def non_trainable_weights(self) -> list[tf.Variable]:
        """The usual weights; if Keras calls get_weights or set_weights, also the engine's tables and slots.

        Therefore `get_weights`, `set_weights`, EarlyStopping, `clone_model` and `.h5` files include the tables, but a
        training loop that asks for variables does not get them.

        Raises:
          EngineError (RuntimeError): the tables are in a real TPU's memory or on parameter servers.
        """
        weights: list[tf.Variable] = super().non_trainable_weights
        engine = self._state.engine
        if not engine.trains_itself or not wants_weights_as_list():
            return weights
        engine_variables = list(saved_variables(engine).values())
        if self.built and not engine_variables:
            raise EngineError(
                f"The tables of layer {self.name!r} are in a TPU's memory or on parameter servers: get_weights, "
                "set_weights, EarlyStopping with restore_best_weights and .h5 files cannot copy them. Save and restore "
                "with tf.train.Checkpoint."
            )
        return [*weights, *engine_variables]

    def __getstate__(self) -> Any:
        """Refuse copy.deepcopy and pickle of the layer alone; whole models are copied through their configuration.

        Raises:
          EngineError (RuntimeError): always.
        """
        raise EngineError(
            f"Layer {self.name!r} can be neither pickled nor copied by copy.deepcopy: make another one by "
            "TPUEmbedding.from_config(layer.get_config()), or copy, pickle or save the whole model."
        )

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Json:
        """Return what checkpoints follow: the tables under `_tpu_embedding`, and not the virtual variable."""
        children: Json = super()._trackable_children(save_type, **kwargs)
        children.pop(_HELPER, None)
        return children


def _is_keras_tensor(value: Any) -> bool:
    try:
        return bool(tf_keras.backend.is_keras_tensor(value))
    except ValueError:  # not a tensor
        return False

"""Looks up rows through a TPU's queues: enqueues ids, dequeues activations and sends their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedding_core.engines.engine import Engine, Gradients, Lookup
from embedding_core.errors import EngineError
from embedding_core.feature_specs import Ids, Weights
from embedding_core.structures import Nested
from embedding_core.translate import Model


class QueuedEngine(Engine):
    """What the simulated engine and a V1 TPU have in common."""

    on_tpu = True

    def __init__(self, model: Model, queues: Any = None):
        """Look up through an object that has the methods of `tf.tpu.experimental.embedding.TPUEmbedding`.

        Args:
          model: tables and features.
          queues: has `enqueue`, `dequeue` and `apply_gradients`; None if the engine itself has them.
        """
        self.model = model
        self._api: Any = self if queues is None else queues
        self._lookups = 0

    def look_up(self, values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        """Enqueue a batch; each call has a name, which tells the engine which lookups get gradients.

        Raises:
          EngineError (RuntimeError): called outside of strategy.run, or inside control flow within it.
        """
        if tf.distribute.in_cross_replica_context():  # otherwise a batch would be enqueued and never dequeued
            raise EngineError(
                "The layer was created under a TPU's strategy and is called outside of strategy.run, and only "
                "the cores can look up: call it in the function given to strategy.run, or by model.fit, evaluate or "
                "predict."
            )
        self._lookups += 1
        name, structure = str(self._lookups), self.model.structure

        def update(gradients: Gradients) -> None:
            self._api.apply_gradients(tf.nest.pack_sequence_as(structure, list(gradients)), name)

        self._enqueue_named(*packed_like(structure, values, weights), name)
        return Lookup(lambda: tf.nest.flatten(self._api.dequeue(name)), update)

    def _enqueue_named(self, features: Nested, weights: Nested, name: str) -> None:
        try:
            self._api.enqueue(features, weights, True, name, None)
        except RuntimeError as error:
            if "control flow" not in str(error):
                raise
            names = [feature.path for feature in self.model.features]
            raise EngineError(
                f"The lookup of {names} is inside tf.cond, a loop or a nested tf.function within strategy.run: "
                "the cores cannot meet there. Call the layer before, at the top level of the function given to "
                "strategy.run, and pass its activations in."
            ) from error


def packed_like(structure: Nested, values: Sequence[Ids], weights: Sequence[Weights]) -> tuple[Nested, Nested]:
    """Pack flat ids and weights into the configuration's structure; the weights are None if each of them is None."""
    features = tf.nest.pack_sequence_as(structure, list(values))
    if all(weight is None for weight in weights):
        return features, None
    return features, tf.nest.pack_sequence_as(structure, list(weights))

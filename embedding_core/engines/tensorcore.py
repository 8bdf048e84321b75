"""Keeps whole tables on every core of a TPU without an embedding engine, such as v5e: `TPUEmbeddingV0`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from embedding_core.engines.hardware_configs import copied_configs, is_real_tpu, refuse_ignored
from embedding_core.engines.simulated_strategy import SimulatedTPUStrategy
from embedding_core.engines.tables import NamedTables, Variables, plain_variables, track_variables
from embedding_core.errors import EngineError
from embedding_core.feature_specs import AnyTable, FeatureConfigs
from embedding_core.lookup import cpu_embedding_lookup, finite_weight, kind_of
from embedding_core.structures import Nested, path_name, paths_of
from embedding_core.tracing import as_written
from embedding_core.translate import GivenOptimizer, TableSpec, model_of


class TPUEmbeddingV0(NamedTables):
    """A drop-in for `tf.tpu.experimental.embedding.TPUEmbeddingV0` that also runs on a simulated TPU.

    Every core holds every table as a trainable variable; lookups are differentiable, and the caller's
    Keras optimizer updates the tables. On a real TPU, the constructor returns a `HardwareTPUEmbeddingV0`.
    """

    def __new__(cls, feature_config: FeatureConfigs, optimizer: GivenOptimizer, *, seed: int = 0) -> Any:
        """Create an instance of this class, or, on a real TPU, of TensorFlow's class."""
        if is_real_tpu(tf.distribute.get_strategy()):
            return HardwareTPUEmbeddingV0(feature_config, optimizer)
        return super().__new__(cls)

    def __init__(self, feature_config: FeatureConfigs, optimizer: GivenOptimizer, *, seed: int = 0):
        """Read the configuration; variables are created by `build`, or by the first lookup.

        Args:
          feature_config: a structure of `tf.tpu.experimental.embedding.FeatureConfig`, or an EmbeddingConfig.
          optimizer: one of `tf.tpu.experimental.embedding` or `embedding_core`, which determines only which slots are
            created; None for no slots.
          seed: seed of the initial rows.

        Raises:
          EngineError (RuntimeError): created outside of a TPU strategy's scope.
          ConfigError (ValueError): a hyperparameter is out of range, or a Keras optimizer would ignore it.
        """
        strategy = tf.distribute.get_strategy()
        if not isinstance(strategy, SimulatedTPUStrategy):
            raise EngineError(
                f"TPUEmbeddingV0 should be created under TPUStrategy but found {strategy}: create it in the scope of "
                "tf.distribute.TPUStrategy, or of embedding_core.engines.simulated_tpu()."
            )
        model = model_of(feature_config, optimizer, needs_optimizer=False)
        refuse_ignored(model, "V0")
        self._state = _State(feature_config, model.tables, strategy, seed)

    def build(self) -> None:
        """Create the tables and slots, one copy per core; do nothing the second time."""
        if self._state.variables:
            return
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        if context is not None:  # in the first lookup, on every core: the cores create each variable once, together
            context.merge_call(lambda strategy: self._create())
            return
        with self._state.strategy.scope():
            self._create()

    def _create(self) -> None:
        state = self._state
        with tf.init_scope():
            state.variables = plain_variables(state.tables, state.seed)
        track_variables(state.tables, state.variables, lambda key, variable: self._track_trackable(variable, name=key))

    @property
    def embedding_tables(self) -> dict[AnyTable, tf.Variable]:
        """The float32 [rows, dim] tables by TableConfig; trainable."""
        self.build()
        return {table.key: self._state.variables[table.name]["parameters"] for table in self._state.tables}

    @as_written
    def embedding_lookup(self, features: Nested, weights: Nested = None) -> Nested:
        """Look up the features; the activations are differentiable with respect to the tables.

        Args:
          features: dense, sparse or ragged ids in the structure of `feature_config`.
          weights: None, or a structure like `features`, each leaf of which is weights or None.

        Returns:
          What `lookup.cpu_embedding_lookup` returns.

        Raises:
          tf.errors.InvalidArgumentError: a weight is not finite.
        """
        tables = self.embedding_tables
        if weights is not None:
            tf.nest.assert_same_structure(features, weights)
            features, weights = _checked(features, weights)
        return cpu_embedding_lookup(features, weights, tables, self._state.feature_config)

    def __call__(self, features: Nested, weights: Nested = None) -> Any:
        """See `embedding_lookup`."""
        return self.embedding_lookup(features, weights)


class _State:
    """Holds the attributes that checkpoints must not track."""

    def __init__(
        self, feature_config: FeatureConfigs, tables: tuple[TableSpec, ...], strategy: SimulatedTPUStrategy, seed: int
    ):
        self.feature_config = feature_config
        self.tables = tables
        self.strategy = strategy
        self.seed = seed
        self.variables: Variables = {}


def _checked(features: Nested, weights: Nested) -> tuple[Nested, Nested]:
    """Check that all weights are finite before any feature is looked up, so that an invalid one stops every lookup."""
    flat = [
        finite_weight(path_name(path), weight) if kind_of(weight) in ("sparse", "ragged") else weight
        for path, weight in zip(paths_of(features), tf.nest.flatten(weights), strict=True)
    ]
    with tf.control_dependencies([part for part in tf.nest.flatten(flat, expand_composites=True) if part is not None]):
        features = tf.nest.map_structure(lambda value: tf.identity(value) if kind_of(value) else value, features)
    return features, tf.nest.pack_sequence_as(weights, flat)


class HardwareTPUEmbeddingV0(tf.tpu.experimental.embedding.TPUEmbeddingV0):
    """TensorFlow's own class on a real TPU, given copies of the caller's configurations, which it would modify."""

    def __init__(self, feature_config: FeatureConfigs, optimizer: GivenOptimizer):
        refuse_ignored(model_of(feature_config, optimizer, needs_optimizer=False), "V0")
        super().__init__(*copied_configs(feature_config, optimizer))

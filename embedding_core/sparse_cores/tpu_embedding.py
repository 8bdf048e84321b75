"""Emulates the SparseCores of v5p and v6e on the CPU host of a simulated TPU: `TPUEmbeddingV2`.

There are no queues: `enqueue` sorts the ids of one chip into partitions and returns them, `dequeue` looks them up, and
`apply_gradients` updates the rows with the gradients of all chips. In the last two, the chips synchronize in a
merge_call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.tpu.kernels.sparse_core_layout_pb2 import SparseCoreTableLayout

from embedding_core.engines.engine import ReplicaValue
from embedding_core.engines.hardware_configs import copied_configs, is_real_tpu, refuse_ignored
from embedding_core.engines.simulated_strategy import (
    ReplicaContext,
    SimulatedTPUStrategy,
    cannot_meet,
    core_at,
    core_of,
    local_values,
    refuse_nested,
)
from embedding_core.engines.tables import ITERATIONS, PARAMETERS, NamedTables, Variables
from embedding_core.errors import ConfigError, DataError, EngineError
from embedding_core.feature_specs import FeatureConfigs, Weights
from embedding_core.sparse_cores import Slice, SparseCoreEmbeddingConfig
from embedding_core.sparse_cores.stack_feeding import StackFeeder, refuse_sequences
from embedding_core.sparse_cores.stack_memory import ChipIds, StackMemory, TableView
from embedding_core.structures import Nested
from embedding_core.tracing import as_written
from embedding_core.translate import GivenOptimizer, Model, model_of

_HOST = "CPU:0"


class TPUEmbeddingV2(NamedTables):
    """A drop-in for `tf.tpu.experimental.embedding.TPUEmbeddingV2` on a simulated TPU with SparseCores.

    `TPUEmbedding` creates one in the scope of `simulated_tpu(embedding_feature="V2")`. Every feature needs an
    `output_shape`. A checkpoint has each table and slot by its name, as on every other engine. On a real TPU, the
    constructor returns a `HardwareTPUEmbeddingV2`.
    """

    def __new__(
        cls,
        feature_config: FeatureConfigs | Model,
        optimizer: GivenOptimizer = None,
        pipeline_execution_with_tensor_core: bool = False,
        sparse_core_embedding_config: Any = None,
        *,
        seed: int = 0,
    ) -> Any:
        """Create an instance of this class, or, on a real TPU, of TensorFlow's class."""
        if is_real_tpu(tf.distribute.get_strategy()):
            return HardwareTPUEmbeddingV2(
                feature_config, optimizer, pipeline_execution_with_tensor_core, sparse_core_embedding_config
            )
        return super().__new__(cls)

    def __init__(
        self,
        feature_config: FeatureConfigs | Model,
        optimizer: GivenOptimizer = None,
        pipeline_execution_with_tensor_core: bool = False,
        sparse_core_embedding_config: Any = None,
        *,
        seed: int = 0,
    ):
        """Read the configuration and stack the tables; variables are created by `build`, or by the first lookup.

        Args:
          feature_config: a structure of `tf.tpu.experimental.embedding.FeatureConfig`; the layer passes a Model.
          optimizer: one of `tf.tpu.experimental.embedding` or of `embedding_core`, for tables without their own.
          pipeline_execution_with_tensor_core: whether activations may be one step old, as on a TPU.
          sparse_core_embedding_config: a SparseCoreEmbeddingConfig of `embedding_core.sparse_cores`, or of a TensorFlow
            that has the class; None for its defaults.
          seed: seed of the initial rows.

        Raises:
          EngineError (RuntimeError): created outside of the scope of a TPU with SparseCores.
          ConfigError (ValueError): an unsupported optimizer, a hyperparameter out of range or one that SparseCores
            ignore, a feature without output shape, one whose samples the SparseCores of a chip cannot share, or limits
            of other stacks.
        """
        strategy = tf.distribute.get_strategy()
        if not isinstance(strategy, SimulatedTPUStrategy) or strategy.embedding_feature != "V2":
            raise EngineError(
                f"TPUEmbeddingV2 should be created under TPUStrategy but found {strategy}: create it in the scope of "
                "embedding_core.engines.simulated_tpu(embedding_feature='V2')."
            )
        given = feature_config
        model = given if isinstance(given, Model) else model_of(given, optimizer, needs_optimizer=True)
        refuse_ignored(model, "V2")
        config = SparseCoreEmbeddingConfig.of(sparse_core_embedding_config)
        self._state = StackMemory(model, strategy, config, seed, pipelined=pipeline_execution_with_tensor_core)

    @property
    def dropped_ids(self) -> dict[str, tf.Variable]:
        """Number of ids that were dropped, by name of the stack, int64 scalar variables.

        An id that a sample has several times counts once. Always 0 without `allow_id_dropping`.
        """
        return self._state.dropped

    @property
    def table_views(self) -> dict[str, TableView]:
        """The tables and slots, float32 [rows, dim], by `<table>` and `<table>/<slot>`; empty before `build`."""
        return self._state.views

    def build(self) -> None:
        """Create the stacks of tables and slots; do nothing the second time."""
        if self._state.variables:
            return
        with tf.init_scope(), tf.device(_HOST):
            self._state.build()
        for key, view in self._state.views.items():
            self._track_trackable(view, name=key)
        if self._state.iterations is not None:
            self._track_trackable(self._state.iterations, name=ITERATIONS)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """Return what checkpoints follow, the tables by name; an exported model holds the stacks that it reads."""
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)
        if save_type == "checkpoint":
            return children
        return {name: own[PARAMETERS] for name, own in self._state.variables.items()}

    @property
    def embedding_tables(self) -> dict[str, tf.Variable]:
        """The stacks by name, float32 [shards * rows per shard, padded dim]."""
        self.build()
        return {name: own[PARAMETERS] for name, own in self._state.variables.items()}

    @property
    def embedding_table_shards(self) -> dict[str, list[tuple[str, tf.Tensor]]]:
        """The rows of each stack on each chip, with the device of the chip, by name of the stack."""
        devices = self._state.strategy.extended.worker_devices
        return {
            name: list(zip(devices, tf.split(stack, len(devices)), strict=True))
            for name, stack in self.embedding_tables.items()
        }

    @property
    def variables(self) -> Variables:
        """The stacks and their slots, by name of the stack and then "parameters" or the name of the slot."""
        self.build()
        return self._state.variables

    @property
    def embedding_layouts(self) -> dict[str, SparseCoreTableLayout]:
        """Where each table is in its stack, by name of the table."""
        return self._state.layouts

    @as_written
    def enqueue(self, features: Nested, weights: Nested = None, device: str | None = None) -> ChipIds:
        """Sort the ids of one chip into the partitions of its SparseCores.

        Args:
          features: dense, sparse or ragged ids in the structure of `feature_config`, of one chip.
          weights: None, or a structure like `features`, each leaf of which is weights or None.
          device: the chip, outside of strategy.run.

        Returns:
          What `dequeue` takes.

        Raises:
          EngineError (RuntimeError): inside control flow within strategy.run.
          DataError (ValueError): structure, kind, shape, weight or device do not fit, or inputs of several chips are
            given outside of strategy.run without `device`.
          tf.errors.InvalidArgumentError: an id is outside its table, a weight is not finite, or the ids are over a
            limit and `allow_id_dropping` is False.
        """
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        if context is not None:
            refuse_nested(context)
        state = self._state
        tf.nest.assert_same_structure(state.model.structure, features)
        values = tf.nest.flatten(features)
        flat_weights: list[Weights] = [None] * len(values)
        if weights is not None:
            tf.nest.assert_same_structure(state.model.structure, weights)
            flat_weights = tf.nest.flatten(weights)
        chip = _chip_fed(state.strategy, context, device, [*values, *flat_weights])
        with tf.device(_HOST):
            return state.sorted_ids(
                local_values(state.strategy, values, chip), local_values(state.strategy, flat_weights, chip)
            )

    @as_written
    def dequeue(self, partitioned_tensors: ChipIds) -> tuple[Nested, ChipIds]:
        """Look up what `enqueue` returned, on this chip.

        Returns:
          Activations [*output_shape, dim] in the structure of `feature_config`, and what `apply_gradients` takes.

        Raises:
          EngineError (RuntimeError): outside of strategy.run, or inside control flow within it.
          DataError (ValueError): `enqueue` of this object did not return it.
        """
        self.build()
        state = self._state
        state.check(partitioned_tensors)
        found = _together("dequeue", state.strategy, state.look_up, partitioned_tensors)
        return state.unstacked(found), partitioned_tensors

    @as_written
    def apply_gradients(self, gradients: Nested, preserved_outputs: ChipIds) -> None:
        """Update the tables with the gradients of all chips; each touched row is updated once.

        Args:
          gradients: of the activations, in the structure of `feature_config`; None counts as zeros.
          preserved_outputs: the second output of the lookup.

        Raises:
          EngineError (RuntimeError): before `build`, outside of strategy.run, or inside control flow within it.
          DataError (ValueError): a gradient is not a tensor or has another shape, or `preserved_outputs` is of another
            object.
        """
        state = self._state
        if not state.variables:
            raise EngineError(
                "apply_gradients called on unbuilt TPUEmbeddingV2 object. Please either call the embedding lookup "
                "method first or manually call the build method."
            )
        state.check(preserved_outputs)
        tf.nest.assert_same_structure(state.model.structure, gradients)
        stacked = state.stacked(tf.nest.flatten(gradients))
        _together("apply_gradients", state.strategy, state.update, (preserved_outputs, stacked))

    def embedding_lookup(self, features: Nested, weights: Nested = None) -> tuple[Nested, ChipIds]:
        """Look up the features of this chip: `enqueue`, and then `dequeue`."""
        return self.dequeue(self.enqueue(features, weights))

    def __call__(self, features: Nested, weights: Nested = None) -> tuple[Nested, ChipIds]:
        """See `embedding_lookup`."""
        return self.embedding_lookup(features, weights)

    @classmethod
    def compute_sparse_core_stats(
        cls,
        features: Nested,
        feature_config: FeatureConfigs,
        num_tpu_chips: int,
        num_sc_per_chip: int = 4,
        optimizer: GivenOptimizer = None,
        sparse_core_embedding_config: Any = None,
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count what one chip's batch needs, as versions of TensorFlow that take limits do.

        `TableConfigGen` computes limits over all batches of a training.

        Args:
          features: ids of one chip, eager.
          feature_config: see the class.
          num_tpu_chips: number of chips.
          num_sc_per_chip: number of SparseCores of each chip.
          optimizer: see the class.
          sparse_core_embedding_config: see the class; its limits are not used.

        Returns:
          `max_ids_per_table` and `max_unique_ids_per_table` of a SparseCoreEmbeddingConfig.
        """
        model = model_of(feature_config, optimizer, needs_optimizer=True)
        config = SparseCoreEmbeddingConfig.of(sparse_core_embedding_config)
        feeder = StackFeeder(model, Slice(num_tpu_chips, num_sc_per_chip), config)
        values = tf.nest.flatten(features)
        counts = {name: found.counts for name, found in feeder.sorted_ids(values, [None] * len(values)).items()}
        return (
            {name: int(tf.reduce_max(count.ids)) for name, count in counts.items()},
            {name: int(tf.reduce_max(count.unique_ids)) for name, count in counts.items()},
        )


def _chip_fed(
    strategy: SimulatedTPUStrategy, context: ReplicaContext | None, device: str | None, inputs: Sequence[Any]
) -> int:
    """Return the number of the chip that a call of `enqueue` feeds.

    Raises:
      DataError (ValueError): `device` is not a chip, or it is unknown which of several chips' inputs to take.
    """
    if context is not None:
        return core_of(context)
    if device is not None:
        return core_at(strategy, device)
    chips = max(len(strategy.experimental_local_results(value)) for value in inputs)
    if chips > 1:
        raise DataError(
            f"enqueue outside of strategy.run has inputs of {chips} chips, and returns the ids of one: name the chip "
            "as `device`, or call enqueue in the function given to strategy.run."
        )
    return 0


def _together(method: str, strategy: SimulatedTPUStrategy, of_chips: Callable[..., Sequence[Any]], own: Any) -> Any:
    """Call a function with the values of all chips, in a merge_call; return this chip's item of what it returns.

    Raises:
      EngineError (RuntimeError): outside of strategy.run, or where the chips cannot synchronize.
    """
    context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    if context is None or tf.distribute.get_strategy() is not strategy:
        raise EngineError(
            f"{method} is not valid outside of strategy.run: call it in the function that the strategy of the "
            "TPUEmbeddingV2 object runs on every chip."
        )

    def merged(strategy: tf.distribute.Strategy, chips: ReplicaValue) -> ReplicaValue:
        values = [chip.value for chip in strategy.experimental_local_results(chips)]
        with tf.device(_HOST):
            return ReplicaValue(of_chips(values))

    try:
        return context.merge_call(merged, args=(ReplicaValue(own),)).value[core_of(context)]
    except RuntimeError as error:
        if not cannot_meet(error):
            raise
        raise EngineError(
            f"{method} inside control flow or a tf.function within strategy.run: the chips cannot meet there; call it "
            "at the top level of the function given to strategy.run."
        ) from error


class HardwareTPUEmbeddingV2(tf.tpu.experimental.embedding.TPUEmbeddingV2):
    """TensorFlow's own class on a real TPU with SparseCores (V2), with only the methods of that class.

    What TensorFlow would silently ignore is refused by name: hyperparameters, and the length of sequences.
    """

    def __init__(
        self,
        feature_config: FeatureConfigs,
        optimizer: GivenOptimizer = None,
        pipeline_execution_with_tensor_core: bool = False,
        sparse_core_embedding_config: Any = None,
    ):
        model = model_of(feature_config, optimizer, needs_optimizer=True)
        refuse_ignored(model, "V2")
        refuse_sequences(model)
        given = copied_configs(feature_config, optimizer)
        super().__init__(
            *given, pipeline_execution_with_tensor_core, **_limits_of_hardware(sparse_core_embedding_config)
        )


def _limits_of_hardware(config: Any) -> dict[str, Any]:
    """Return the argument of TensorFlow's class, if this TensorFlow has it."""
    if config is None:
        return {}
    theirs = getattr(tf.tpu.experimental.embedding, "SparseCoreEmbeddingConfig", None)
    if theirs is None:
        raise ConfigError(
            f"`sparse_core_embedding_config` is given, but the limits of TensorFlow {tf.__version__} are fixed: "
            "leave it None, or take a TensorFlow that has SparseCoreEmbeddingConfig."
        )
    return {"sparse_core_embedding_config": theirs(**SparseCoreEmbeddingConfig.of(config).to_mapping())}

"""Looks up and trains tables on SparseCores, real or simulated, through `TPUEmbeddingV2`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.engine import Engine, Gradients, Lookup
from embedding_core.engines.hardware_configs import is_real_tpu, refuse_policies
from embedding_core.engines.queues import packed_like
from embedding_core.errors import ConfigError
from embedding_core.feature_specs import AnyTable, FeatureSpec, Ids, Weights
from embedding_core.layer.engine_choice import by_callers_config, hardware_feature, on_tpu
from embedding_core.layer.layer_configs import LayerConfig
from embedding_core.lookup import kind_of, normal_form
from embedding_core.sparse_cores.tpu_embedding import TPUEmbeddingV2
from embedding_core.structures import Nested
from embedding_core.translate import config_to_tensorflow


class SparseCoreTables(Engine):
    """Tables on SparseCores (V2).

    The class for SparseCores does not know sequences: each position of a sequence feature becomes a sample of its own.
    """

    on_tpu = True

    def __init__(self, config: LayerConfig, *, pipelined: bool, batch_size: int | None, limits: Any, seed: int):
        """Create the object that holds the tables.

        Args:
          config: tables and features.
          pipelined: whether activations may be one step old.
          batch_size: rows of a chip's batch; needed for features without an output shape.
          limits: a SparseCoreEmbeddingConfig or None.
          seed: seed of the initial rows, on a simulated TPU.

        Raises:
          ConfigError (ValueError): an output shape is unknown; see also `TPUEmbeddingV2`.
        """
        self.model = config.model
        self._config = config
        shapes = [_output_shape(feature, batch_size) for feature in self.model.features]
        if is_real_tpu(tf.distribute.get_strategy()):
            given = _for_tensorflow(config.copies, shapes)
            self.tables: Any = TPUEmbeddingV2(given, config.optimizer, pipelined, limits)
        else:
            features = (
                dataclasses.replace(feature, output_shape=shape, max_sequence_length=0)
                for feature, shape in zip(self.model.features, shapes, strict=True)
            )
            flat = dataclasses.replace(self.model, features=tuple(features))
            self.tables = TPUEmbeddingV2(flat, None, pipelined, limits, seed=seed)

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """See `Engine`."""
        self.tables.build()

    @property
    def table_variables(self) -> Mapping[str, tf.Variable]:
        """See `Engine`; views of the tables in their stacks."""
        return getattr(self.tables, "table_views", {})

    def look_up(self, values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        """See `Engine`."""
        structure = self.model.structure
        kept: list[Any] = []

        def activations() -> list[tf.Tensor]:
            positions = [
                _by_position(feature, ids, weight)
                for feature, ids, weight in zip(self.model.features, values, weights, strict=True)
            ]
            found, preserved = self.tables(*packed_like(structure, positions, weights))
            kept.append(preserved)
            return list(tf.nest.flatten(found))

        def update(gradients: Gradients) -> None:
            packed = tf.nest.pack_sequence_as(structure, list(gradients))
            self.tables.apply_gradients(packed, preserved_outputs=kept[-1])

        return Lookup(activations, update)

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """See `Engine`; as on a TPU, the stacks by name, except while a model is exported."""
        views = self.table_variables
        if views and not tf.executing_eagerly() and not tf.distribute.has_strategy():
            return {table.key: views[table.name] for table in self.model.tables}
        return by_callers_config(self._config, self.tables.embedding_tables)


def new_engine(strategy: tf.distribute.Strategy, config: LayerConfig, arguments: Mapping[str, Any]) -> Engine | None:
    """Return the engine for a TPU with SparseCores; None under another strategy."""
    if not on_tpu(strategy) or hardware_feature(strategy, arguments["embedding_feature"]) != "V2":
        return None
    return SparseCoreTables(
        config,
        pipelined=arguments["pipeline_execution_with_tensor_core"],
        batch_size=arguments["batch_size"],
        limits=arguments["sparse_core_embedding_config"],
        seed=arguments["seed"],
    )


def _output_shape(feature: FeatureSpec, batch_size: int | None) -> tuple[int | None, ...]:
    """Return the output shape of a feature, which has to be known before the tables are created.

    Raises:
      ConfigError (ValueError): the batch size is unknown.
    """
    if feature.output_shape is not None:
        return feature.output_shape
    if batch_size is None:
        raise ConfigError(
            f"`output_shape` of feature {feature.path!r} is not given, nor is the layer's `batch_size`: a TPU with "
            "SparseCores has to know the rows of a core's batch from the start; give the layer `batch_size`."
        )
    return (batch_size, feature.max_sequence_length) if feature.max_sequence_length else (batch_size,)


def _for_tensorflow(given: Nested, shapes: Sequence[tuple[int | None, ...]]) -> Nested:
    """Return feature configurations for TensorFlow's class, with their output shapes and without sequences."""
    refuse_policies(given)
    copies = config_to_tensorflow(given) if isinstance(given, EmbeddingConfig) else given
    for feature, shape in zip(tf.nest.flatten(copies), shapes, strict=True):
        feature.output_shape = tf.TensorShape(shape)
        feature.max_sequence_length = 0
    return copies


def _by_position(feature: FeatureSpec, value: Ids, weight: Weights) -> Ids:
    """Give each position of a sequence a row of its own: sparse ids [batch * length, 1]; return other ids unchanged."""
    if not feature.max_sequence_length or feature.output_shape is not None or kind_of(value) == "dense":
        return value

    def rows() -> tf.SparseTensor:
        form = normal_form(feature, value, weight)
        segments = tf.cast(form.segments, tf.int64)
        indices = tf.stack([segments, tf.zeros_like(segments)], 1)
        return tf.sparse.reorder(tf.SparseTensor(indices, form.ids, [form.rows, 1]))

    if is_real_tpu(tf.distribute.get_strategy()):  # the ids are on the host
        return tf.compat.v1.tpu.outside_compilation(rows)
    return rows()

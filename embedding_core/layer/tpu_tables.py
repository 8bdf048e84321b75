"""Holds tables in a real TPU's memory, or whole tables on each core of a TPU without an embedding engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.engines import TPUEmbedding, TPUEmbeddingV0
from embedding_core.engines.engine import Engine, Lookup
from embedding_core.engines.hardware_configs import is_real_tpu
from embedding_core.engines.queues import QueuedEngine
from embedding_core.feature_specs import AnyTable, Ids, Weights
from embedding_core.layer.layer_configs import LayerConfig


class HardwareTables(QueuedEngine):
    """Tables on a real TPU with a V1 engine, through TensorFlow's own class."""

    def __init__(self, config: LayerConfig, *, pipelined: bool):
        self.tables = TPUEmbedding(config.copies, config.optimizer, pipelined)
        super().__init__(config.model, self.tables)
        self._config = config

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """See `Engine`."""
        if batch_size is not None:
            self.tables.build(per_replica_batch_size=batch_size)
        elif input_shapes is not None:
            shapes = tf.nest.pack_sequence_as(self.model.structure, list(input_shapes))
            self.tables.build(per_replica_input_shapes=shapes)

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """See `Engine`; works only while a model is exported."""
        return by_callers_config(self._config, self.tables.embedding_tables)


class ReplicatedTables(Engine):
    """Whole tables on every core of a TPU without an embedding engine; a Keras optimizer trains them."""

    trains_itself = False
    on_tpu = True

    def __init__(self, config: LayerConfig, seed: int):
        real = is_real_tpu(tf.distribute.get_strategy())
        options = {} if real else {"seed": seed}
        self.tables = TPUEmbeddingV0(config.copies, config.optimizer, **options)
        self._config = config

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """Create the variables; shapes are not needed."""
        self.tables.build()

    def look_up(self, values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        """See `Engine`."""
        structure = self._config.model.structure
        features, packed_weights = (tf.nest.pack_sequence_as(structure, list(flat)) for flat in (values, weights))
        return Lookup(lambda: list(tf.nest.flatten(self.tables(features, packed_weights))), None)

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """See `Engine`."""
        return by_callers_config(self._config, self.tables.embedding_tables)


def by_callers_config(config: LayerConfig, tables: Mapping[Any, Any]) -> dict[AnyTable, tf.Variable]:
    """Key tables by the caller's configs; the engine keys them by copies of these, or by names of stacked tables."""
    places = {id(feature.table): place for place, feature in enumerate(tf.nest.flatten(config.copies))}
    keys = {table.name: table.key for table in config.model.tables}
    by_config = {}
    for key, table in tables.items():
        if id(key) not in places:
            by_config[key] = table
            continue
        by_config[keys[config.model.features[places[id(key)]].table]] = table
    return by_config

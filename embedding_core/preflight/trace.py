"""Traces the training step into the program that a TPU of a given topology would run."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.engines import TPUEmbedding, TPUEmbeddingV0
from embedding_core.planning.topology import Topology
from embedding_core.preflight.engine_config import engine_summary
from embedding_core.preflight.step_to_trace import MakeStep, Step
from embedding_core.preflight.topology_strategy import Hardware, no_engine_yet, strategy_of_topology
from embedding_core.schema import Json
from embedding_core.translate import config_to_tensorflow

# Attributes (of graph operations) by which TensorFlow marks the operations that are compiled for a core, and those of
# them that the core leaves to its host.
_ON_CORE, _ON_HOST = "_tpu_replicate", "_xla_outside_compilation"
_LIBRARIES = (Path(tf.__file__).parents[1] / "tensorflow", Path(tf_keras.__file__).parent, Path(__file__).parents[1])


class Traced(NamedTuple):
    """A traced program.

    Attributes:
      graph: graph of the whole step.
      on_core: operations that are compiled for every core.
      on_host: operations that a core leaves to its host in every step.
    """

    graph: tf.Graph
    on_core: tuple[tf.Operation, ...]
    on_host: tuple[tf.Operation, ...]

    def summary(self) -> Json:
        """Summarize the program in plain values: operations by type and device, and the engine's configuration."""
        of_engine = tuple(op for op in self.graph.get_operations() if _of_embedding(op.type))
        configs = [op.node_def.attr["config"].s for op in self.on_core if op.type == "RecvTPUEmbeddingActivations"]
        return {
            "operations_on_core": len(self.on_core),
            "types_on_core": _counted(self.on_core),
            "types_on_host": _counted(self.on_host),
            "embedding_operations": _counted(of_engine),
            "all_reduced_bytes": sum(_bytes(op.inputs[0]) for op in self.on_core if op.type == "CrossReplicaSum"),
            "engine": engine_summary(configs[0]) if configs else None,
        }


def trace_step(
    config: EmbeddingConfig,
    topology: Topology,
    hardware: Hardware,
    rows: int,
    make_step: MakeStep,
    *,
    own_tables: bool = False,
) -> Traced:
    """Build tables, model and step under `tf.distribute.TPUStrategy` over the slice, and trace the step.

    Nothing runs, and no table takes memory: variables and their initial rows are operations of a graph that is
    thrown away.

    Args:
      config: tables and features; every table has an optimizer.
      topology: the slice.
      hardware: its embedding hardware, which chooses TensorFlow's class.
      rows: number of rows of one core's batch.
      make_step: makes the model and the step.
      own_tables: whether `make_step` makes and builds the embedding, and receives the configuration.

    Raises:
      Exception: any that the configuration or the step raises.
    """
    with tf.Graph().as_default():
        strategy = strategy_of_topology(topology, hardware)
        with strategy.scope(), no_engine_yet() if own_tables else contextlib.nullcontext():
            step = make_step(config if own_tables else _built(config, hardware, rows), rows)
        graph = _traced(strategy, step)
    marked = [(op, op.node_def.attr) for op in graph.get_operations()]
    inside = [(op, attributes) for op, attributes in marked if _ON_CORE in attributes]
    return Traced(
        graph,
        tuple(op for op, attributes in inside if _ON_HOST not in attributes),
        tuple(op for op, attributes in inside if _ON_HOST in attributes),
    )


def _built(config: EmbeddingConfig, hardware: Hardware, rows: int) -> Any:
    if hardware == "V0":
        embedding = TPUEmbeddingV0(config, None)
        embedding.build()
        return embedding
    if hardware == "V2":
        embedding = TPUEmbedding(_with_output_shapes(config, rows), None)
        embedding.build()
        return embedding
    embedding = TPUEmbedding(config, None)
    with no_engine_yet():
        embedding.build({feature.name: tf.TensorShape([rows, None]) for feature in config.features})
    return embedding


def _with_output_shapes(config: EmbeddingConfig, rows: int) -> dict[str, tf.tpu.experimental.embedding.FeatureConfig]:
    """Make TensorFlow's feature configurations with the output shapes that the class for SparseCores requires.

    The class has no sequences: their length is part of the output shape.
    """
    features = config_to_tensorflow(config)
    for feature in config.features:
        length, made = feature.max_sequence_length, features[feature.name]
        made.output_shape, made.max_sequence_length = tf.TensorShape([rows, length] if length else [rows]), 0
    return features


def _traced(strategy: tf.distribute.Strategy, step: Step) -> tf.Graph:
    before = step.before
    if before is None:

        def with_one_batch(batch: Any) -> Any:  # XLA names a scope after it, and "<lambda>" is not a valid name
            return strategy.run(step.replica, args=(batch,))

        return tf.function(with_one_batch).get_concrete_function(step.inputs).graph

    def with_batches_of_cores(*batches: Any) -> Any:
        parts = [tf.nest.flatten(batch) for batch in batches]
        spread = [_spread(strategy, values) for values in zip(*parts, strict=True)]
        batch = tf.nest.pack_sequence_as(step.inputs, spread)
        before(batch)
        return strategy.run(step.replica, args=(batch,))

    cores = strategy.num_replicas_in_sync
    return tf.function(with_batches_of_cores).get_concrete_function(*[step.inputs] * cores).graph


def _spread(strategy: tf.distribute.Strategy, values: tuple[tf.Tensor, ...]) -> tf.distribute.DistributedValues:
    return strategy.experimental_distribute_values_from_function(lambda core: values[core.replica_id_in_sync_group])


def _of_embedding(kind: str) -> bool:
    return "TPUEmbedding" in kind or "SparseCore" in kind or "SparseDenseMatmul" in kind


def _bytes(tensor: tf.Tensor) -> int:
    return int((tensor.shape.num_elements() or 0) * tensor.dtype.size)


def _counted(operations: tuple[tf.Operation, ...]) -> dict[str, int]:
    return dict(Counter(op.type for op in operations).most_common())


def name_and_line(op: tf.Operation) -> str:
    """Return the operation's name and, if known, the line of the user's code that made it."""
    line = user_line((frame.filename, frame.lineno) for frame in op.traceback or ())
    return f"{op.name} ({line})" if line else str(op.name)


def user_line(frames: Iterable[tuple[str, int | None]]) -> str:
    """Find the innermost line of the step outside TensorFlow, Keras and this package; empty if there is none."""
    for name, line in reversed(list(frames)):
        file = Path(name)
        if file == Path(__file__):
            break  # the lines outside are those of the caller of `preflight`
        generated = file.suffix != ".py" or file.name.startswith("__autograph_generated_file")
        if not generated and not any(library in file.parents for library in _LIBRARIES):
            return f"{name}:{line}"
    return ""

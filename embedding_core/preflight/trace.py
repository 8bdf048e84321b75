"""Traces a training step into the program that a TPU of a given topology would run."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import tensorflow as tf
import tf_keras
from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf.tpu.tpu_embedding_configuration_pb2 import TPUEmbeddingConfiguration

from embedding_core.config import EmbeddingConfig
from embedding_core.engines import TPUEmbedding, TPUEmbeddingV0
from embedding_core.engines.hardware_configs import embedding_feature
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import length_name
from embedding_core.planning.topology import Topology
from embedding_core.schema import Json
from embedding_core.tasks import Task
from embedding_core.training.drawn_candidates import CANDIDATE, COMPETES, LOG_Q
from embedding_core.training.step import Trainable, new_trainable
from embedding_core.training_config import TrainingConfig
from embedding_core.translate import config_to_tensorflow

# Summarizes the configuration of the embedding engine that the traced program hands to the TPU.


def engine_summary(serialized: bytes) -> Json:
    """Convert a `TPUEmbeddingConfiguration` to plain values.

    Returns:
      "hosts", "cores", "pipelined"; "tables": each table's name, rows, dim, optimizer, the optimizer's parameters, and
      learning rate (a number, or the tag under which each step sends it); "features": each feature's name, table, and
      the shape of its activations on one core, without the dim.
    """
    proto = TPUEmbeddingConfiguration.FromString(serialized)
    tables = [_table(table) for table in proto.table_descriptor]
    return {
        "hosts": proto.num_hosts,
        "cores": proto.num_tensor_cores,
        "pipelined": proto.pipeline_execution_with_tensor_core,
        "tables": tables,
        "features": [
            {"name": feature.name, "table": tables[feature.table_id]["name"], "shape": list(feature.input_shape)}
            for feature in proto.feature_descriptor
        ],
    }


def _table(table: TPUEmbeddingConfiguration.TableDescriptor) -> Json:
    parameters = table.optimization_parameters
    kind = parameters.WhichOneof("parameters")
    common: Json = MessageToDict(parameters, preserving_proto_field_name=True)
    rate = parameters.learning_rate
    dynamic = rate.WhichOneof("learning_rate") == "dynamic"
    of_optimizer = common.pop(kind, {})
    common.pop("learning_rate", None)
    return {
        "name": table.name,
        "rows": table.vocabulary_size,
        "dim": table.dimension,
        "optimizer": kind,
        "parameters": {**of_optimizer, **common},
        "learning_rate": {"tag": rate.dynamic.tag} if dynamic else rate.constant,
    }


# Makes a strategy for a TPU slice from its topology alone: without a TPU it can trace programs, but not run them.
#
# Everything here is public TensorFlow API, with one exception: `tf.tpu.experimental.embedding.TPUEmbedding.build` asks
# the TPU, in Python, whether it already has an engine, and without a TPU there is no answer. While `build` runs,
# `no_engine_yet` makes the tensor that asks evaluate to False.

Hardware: TypeAlias = Literal["V0", "V1", "V2"]

_FEATURE_NUMBERS: Mapping[Hardware, int] = {"V0": 0, "V1": 1, "V2": 2}  # of TPUHardwareFeature.EmbeddingFeature
_QUESTION = "IsTPUEmbeddingInitialized"
_lock = threading.Lock()


def hardware_of(topology: Topology) -> Hardware:
    """Return the embedding hardware of a slice: "V1", "V2" (SparseCore), or "V0" for none.

    A real TPU reports its hardware (`tf.tpu.experimental.HardwareFeature`).
    """
    if topology.sparse_cores:
        return "V2"
    return "V0" if topology.placement == "replicated" else "V1"


def generation_of(topology: Topology) -> str:
    """Return the generation of a slice, such as "v5e" for v5litepod-4."""
    return topology.name.replace("v5litepod", "v5e").partition("-")[0]


def strategy_of_topology(topology: Topology, hardware: Hardware) -> tf.distribute.TPUStrategy:
    """Make a real `tf.distribute.TPUStrategy` for the slice.

    Call this in a `tf.Graph`, and make everything in the strategy's scope in the same graph.

    Args:
      topology: hosts and cores.
      hardware: embedding hardware that the strategy's `tpu_hardware_feature` reports.

    Raises:
      ConfigError: TensorFlow executes eagerly, and would put variables on devices that do not exist.
    """
    if tf.executing_eagerly():
        raise ConfigError("strategy_of_topology was called eagerly: call it within `with tf.Graph().as_default():`.")
    return tf.distribute.TPUStrategy(_TopologyResolver(topology, hardware))


class _TopologyResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """Describes a cluster to TPUStrategy, from a topology alone."""

    def __init__(self, topology: Topology, hardware: Hardware) -> None:
        self._topology = topology
        self._hardware = hardware

    def get_tpu_system_metadata(self) -> tf.tpu.experimental.TPUSystemMetadata:
        """List the cores, host by host, and a CPU for each host."""
        hosts, cores = self._topology.hosts, self._topology.cores_per_host
        names = [f"TPU:{core}" for core in range(cores)] + ["CPU:0"]
        devices = [
            types.SimpleNamespace(name=f"/job:worker/replica:0/task:{host}/device:{name}")
            for host in range(hosts)
            for name in names
        ]
        return tf.tpu.experimental.TPUSystemMetadata(
            num_cores=hosts * cores, num_hosts=hosts, num_of_cores_per_host=cores, topology=None, devices=devices
        )

    @property
    def tpu_hardware_feature(self) -> types.SimpleNamespace:
        """The fields of the proto TPUHardwareFeature that TensorFlow reads."""
        return types.SimpleNamespace(
            embedding_feature=_FEATURE_NUMBERS[self._hardware],
            num_embedding_devices_per_chip=self._topology.sparse_cores,
        )

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Describe one worker per host; nothing connects to the addresses."""
        return tf.train.ClusterSpec({"worker": [f"host-{host}:8470" for host in range(self._topology.hosts)]})

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Return an empty address."""
        return ""

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Count the cores of one host."""
        return {"TPU": self._topology.cores_per_host}


@contextlib.contextmanager
def no_engine_yet() -> Iterator[None]:
    """Answer False when `build` asks in Python whether the TPU already has an embedding engine.

    This replaces a method of `tf.Tensor`, which all threads share, so it holds a lock: keep the body short. All other
    tensors, in any thread, behave as before. If TensorFlow stops asking, this has no effect.
    """
    with _lock:
        original = tf.Tensor.__bool__

        def answer(tensor: tf.Tensor) -> bool:
            asked = not hasattr(tensor, "numpy") and tensor.op.type == _QUESTION
            return False if asked else bool(original(tensor))

        tf.Tensor.__bool__ = answer
        try:
            yield
        finally:
            tf.Tensor.__bool__ = original


# Defines the training step to trace: a caller's step, or the pipeline's step over a model's `build`.

_STEPS = 1000  # steps over which learning rates decay if the training is given in epochs


class Step(NamedTuple):
    """One core's part of a training step.

    Attributes:
      replica: function that `strategy.run` calls with the core's batch.
      inputs: structure of the batch in `tf.TypeSpec`, with a static number of rows.
      before: function called before `strategy.run` with the batches of all cores, a `tf.distribute.DistributedValues`
        for each part; for steps that enqueue on the host.
    """

    replica: Callable[[Any], Any]
    inputs: Any
    before: Callable[[Any], Any] | None = None


MakeStep: TypeAlias = Callable[[Any, int], Step]
"""Called in the strategy's scope with the embedding and the batch size of a core. The embedding is TensorFlow's
`TPUEmbedding`, on V0 `TPUEmbeddingV0`, on V2 `TPUEmbeddingV2`; with `own_tables` it is the EmbeddingConfig."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """The pipeline's training step: the Keras layer of tables, the model of `build`, the loss, the optimizers.

    Pass it to `preflight` with `own_tables=True`.

    Attributes:
      model: dotted module with `build`.
      dense: names of the dense features.
      arguments: arguments of `build`.
      training: optimizers, rates and weights of the loss.
      tasks: what the model is trained for.
    """

    model: str
    dense: Sequence[str]
    arguments: Json
    training: TrainingConfig
    tasks: Sequence[Task] = (Task(),)

    def __call__(self, config: EmbeddingConfig, rows: int) -> Step:
        """Make the step of one core; see `MakeStep`."""
        replicated = embedding_feature(tf.distribute.get_strategy()) == "V0"
        return Step(self.trainable(config, rows, replicated).train_replica, self.inputs(config, rows))

    def trainable(self, config: EmbeddingConfig, rows: int, replicated: bool = False) -> Trainable:
        """Make layer, model and optimizer, as training does.

        Args:
          config: tables and features.
          rows: rows of a core's batch.
          replicated: whether each core of a TPU holds whole tables.
        """
        return new_trainable(
            config,
            self.training,
            model=self.model,
            dense=self.dense,
            arguments=self.arguments,
            tasks=self.tasks,
            rows=rows,
            steps=self.training.steps or _STEPS,
            replicated=replicated,
        )

    def inputs(self, config: EmbeddingConfig, rows: int) -> dict[str, object]:
        """Specify a `training_inputs.Batch` of this many rows."""
        column = tf.TensorSpec([rows, 1], tf.float32)
        lengths = [length_name(feature.name) for feature in config.features if feature.max_sequence_length]
        number = tf.TensorSpec([rows, 1], tf.int32)
        batch: dict[str, object] = {
            "ids": {feature.name: tf.RaggedTensorSpec([rows, None], tf.int64) for feature in config.features},
            "dense": dict.fromkeys(self.dense, column),
            "label": tf.TensorSpec([rows, len(self.tasks)], tf.float32),
            "weight": column,
            "rows": tf.TensorSpec([], tf.int32),
        }
        if self.training.softmax:
            batch["softmax"] = {CANDIDATE: number, LOG_Q: column, COMPETES: number}
        if lengths:
            batch["lengths"] = dict.fromkeys(lengths, column)
        return batch


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

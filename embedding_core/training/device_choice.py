"""Chooses the device to train on, and refuses one that is not available."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import tensorflow as tf

from embedding_core.engines import SimulatedTPUStrategy, simulated_tpu
from embedding_core.errors import ConfigError
from embedding_core.layer import hardware_feature
from embedding_core.planning.topology import Shape, shape_of
from embedding_core.rooms import hooks
from embedding_core.training.row_stream import replica_batches
from embedding_core.training_config import TrainingConfig

Batches: TypeAlias = tf.data.Dataset | tf.distribute.DistributedDataset
_LOCAL_TPU = "local"  # the machine's own, as on a TPU VM
_SIMULATED = "1x2"
_SPARSE_CORES = 4  # of a chip that does not say how many it has, as TensorFlow takes it


class Placement(NamedTuple):
    """The device and strategy that tables and dense part are trained on.

    Attributes:
      kind: kind of the device: "cpu", "gpu", "tpu", "simulated_tpu", or the value of `training.strategy` of a room.
      strategy: TensorFlow's default strategy on a CPU or GPU, else that of the real or simulated TPU, or of the room.
    """

    kind: str
    strategy: tf.distribute.Strategy

    @property
    def on_tpu(self) -> bool:
        """Whether this is a TPU, real or simulated: replicas share each batch, in static shapes."""
        return self.kind in ("tpu", "simulated_tpu")

    @property
    def in_process(self) -> bool:
        """Whether this process holds the tables and reads all rows, on a device that TensorFlow finds by itself."""
        return not self.on_tpu

    @property
    def loop_classes(self) -> tuple[type[Any], type[Any]] | None:
        """Classes that read the rows and run the steps, instead of `JobData` and `Trainable`."""
        return None

    @property
    def not_for_keras(self) -> str:
        """What Keras' `fit` cannot train on, for a message; empty if it can."""
        return "a TPU without an embedding engine" if self.replicated else ""

    @property
    def replicated(self) -> bool:
        """Whether the TPU has no embedding engine, so that every core holds whole tables."""
        return self.on_tpu and hardware_feature(self.strategy, None) == "V0"

    @property
    def stacked_on(self) -> tuple[int, int] | None:
        """Chips of a real TPU with SparseCores, and the number that each has; None without."""
        if self.kind != "tpu" or hardware_feature(self.strategy, None) != "V2":
            return None
        known = self.strategy.extended.tpu_hardware_feature.num_embedding_devices_per_chip
        return self.strategy.num_replicas_in_sync, known or _SPARSE_CORES

    @property
    def hosts(self) -> int:
        """Number of machines that run the replicas and read their input."""
        if isinstance(self.strategy, SimulatedTPUStrategy):
            return self.strategy.hosts
        return int(self.strategy.extended.num_hosts) if self.kind == "tpu" else 1

    @property
    def splits_files(self) -> bool:
        """Whether hosts read different files if `shard_files` does not say it and there are enough files."""
        return self.kind == "tpu"

    def scope(self, checkpoints: str | None = None) -> contextlib.AbstractContextManager[object]:
        """Return the context in which to make and run layers, model and optimizer.

        Args:
          checkpoints: folder of the checkpoints to resume from, for a message about a lost machine.
        """
        scope: contextlib.AbstractContextManager[object] = (
            tf.device(f"/{self.kind.upper()}:0") if self.in_process else self.strategy.scope()
        )
        return scope

    def rows_per_replica(self, rows: int) -> int:
        """Compute the rows of each replica's part of a global batch."""
        replicas: int = self.strategy.num_replicas_in_sync
        return -(-rows // replicas)

    def batches(self, make: Callable[[int], tf.data.Dataset], rows: int, *, own_rows: bool = False) -> Batches:
        """Distribute datasets of batches over the hosts.

        Args:
          make: makes a dataset of global batches for the host of a given number; on a TPU every host calls it, so it
            must not refer to variables or tables of another host.
          rows: number of rows of a whole global batch.
          own_rows: whether a host's dataset holds only its own rows, an equal part of every global batch.
        """
        if not self.on_tpu:
            return make(0)
        size = self.rows_per_replica(rows) * self.strategy.num_replicas_in_sync
        on_host = tf.distribute.InputOptions(experimental_fetch_to_device=False)  # ids are enqueued from the host
        return self.strategy.distribute_datasets_from_function(
            lambda context: replica_batches(make(context.input_pipeline_id), size, context, own_rows=own_rows), on_host
        )


def choose_placement(training: TrainingConfig) -> Placement:
    """Choose the placement that a configuration asks for on this machine: that of an optional room, or one of these.

    A room has a function `choose_placement` in its module `strategy`, which gives None for the strategies of others.

    Raises:
      ConfigError: the device is not available, or the topology of the TPU is not the configured one.
      EngineError: TensorFlow already runs with fewer logical devices than a simulated TPU needs.
    """
    for room in hooks("embedding_core", "strategy"):
        placement: Placement | None = room.choose_placement(training)
        if placement is not None:
            return placement
    if training.strategy == "simulated_tpu":
        return Placement("simulated_tpu", _simulated(shape_of(training.topology or _SIMULATED)))
    gpu, tpu = (bool(tf.config.list_physical_devices(kind)) for kind in ("GPU", "TPU"))
    tpu = tpu or "TPU_NAME" in os.environ
    if not {"gpu": gpu, "tpu": tpu}.get(training.strategy, True):
        raise ConfigError(
            f"`strategy` is {training.strategy!r}, but TensorFlow finds no {training.strategy.upper()} here: choose "
            "'auto' or 'cpu'."
        )
    if training.strategy == "tpu" or (training.strategy == "auto" and tpu):
        return Placement("tpu", _tpu_strategy(training.topology))
    on_gpu = training.strategy == "gpu" or (training.strategy == "auto" and gpu)
    return Placement("gpu" if on_gpu else "cpu", tf.distribute.get_strategy())


def _simulated(shape: Shape) -> SimulatedTPUStrategy:
    hosts, cores = shape.hosts, shape.cores_per_host
    if shape.sparse_cores:
        return simulated_tpu(hosts=hosts, cores_per_host=cores, embedding_feature="V2", sparse_cores=shape.sparse_cores)
    feature: Literal["V0", "V1"] = "V0" if shape.placement == "replicated" else "V1"
    return simulated_tpu(hosts=hosts, cores_per_host=cores, embedding_feature=feature)


def _tpu_strategy(topology: str | None) -> tf.distribute.TPUStrategy:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", _LOCAL_TPU))
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)
    if topology is not None:
        hosts, cores, *_ = shape_of(topology)
        if hosts * cores != strategy.num_replicas_in_sync:
            raise ConfigError(
                f"`topology` is {topology!r}, of {hosts * cores} cores, but the TPU has "
                f"{strategy.num_replicas_in_sync}: correct the topology, or ask for another slice."
            )
    return strategy

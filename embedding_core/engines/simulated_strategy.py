"""Emulates a TPU slice, with its hosts and cores, by a strategy over logical CPU devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import tensorflow as tf

from embedding_core.errors import ConfigError, DataError, EngineError

EmbeddingFeature: TypeAlias = Literal["V1", "V0", "V2"]
ReplicaContext: TypeAlias = Any  # a tf.distribute.ReplicaContext

_SPARE_CORES = 8  # the first call creates devices for at least this many cores, as no more can be added later
_lock = threading.Lock()


class SimulatedTPUStrategy(tf.distribute.MirroredStrategy):
    """Runs one replica per simulated core, each on a separate logical CPU device; CPU:0 is the host.

    Attributes:
      hosts: number of hosts.
      cores_per_host: number of cores of each host.
      embedding_feature: "V1" if the cores have an embedding engine, "V2" if they are chips with SparseCores, else "V0".
      sparse_cores: number of SparseCores of each chip; 0 without.
      embedding_engine: the engine that was built since the last initialization, or None.
    """

    def __init__(self, hosts: int, cores_per_host: int, embedding_feature: EmbeddingFeature, sparse_cores: int = 0):
        devices = [f"CPU:{core + 1}" for core in range(hosts * cores_per_host)]
        super().__init__(devices=devices, cross_device_ops=tf.distribute.ReductionToOneDevice())
        self.hosts = hosts
        self.cores_per_host = cores_per_host
        self.embedding_feature = embedding_feature
        self.sparse_cores = sparse_cores
        self.embedding_engine: Any = None
        self._trace_failed = False  # then it may be another trace that creates the variables of a function

    def run(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Run a function on every core; if it raises, the embedding engine drops the pending batches.

        Args:
          fn: the function.
          args: its positional arguments.
          kwargs: its keyword arguments.
          options: tf.distribute.RunOptions or None.
        """
        created: list[str] = []
        try:
            with tf.variable_creator_scope(_at_once(created)):
                results = tf.distribute.MirroredStrategy.run(self, fn, args, kwargs, options)
        except BaseException:
            self._trace_failed |= not tf.executing_eagerly()
            if self.embedding_engine is not None:
                self.embedding_engine.step_failed()
            raise
        if created and not tf.executing_eagerly() and not self._trace_failed:
            tf.Variable(0, trainable=False)  # by it, TensorFlow knows to refuse variables that a later trace creates
        return results

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[Any], Any], options: Any = None
    ) -> tf.distribute.DistributedDataset:
        """Call `dataset_fn` once per host, as on a TPU; every step takes one batch per core from its host's dataset.

        Args:
          dataset_fn: takes a tf.distribute.InputContext and returns a dataset of per-replica batches.
          options: tf.distribute.InputOptions or None.
        """
        if self.hosts == 1:
            return super().distribute_datasets_from_function(dataset_fn, options)

        def one_dataset(_: Any) -> Any:
            contexts = [
                tf.distribute.InputContext(self.hosts, host, self.num_replicas_in_sync) for host in range(self.hosts)
            ]
            turns = [host for host in range(self.hosts) for _ in range(self.cores_per_host)]
            choice = tf.data.Dataset.from_tensor_slices(tf.constant(turns, tf.int64)).repeat()
            return tf.data.Dataset.choose_from_datasets([dataset_fn(context) for context in contexts], choice)

        return super().distribute_datasets_from_function(one_dataset, options)


def _at_once(created: list[str]) -> Callable[..., tf.Variable]:
    """Return a creator of variables that initializes them at once, and not with the tf.function that creates them.

    If the first trace of a tf.function fails after it created variables of its own, the tf.function returns None from
    then on and traces nothing: Keras' `fit` says "Empty logs" in place of the error, and the variables are never
    initialized. Without such variables, the next call is traced again.

    Args:
      created: gets the names of the variables.
    """

    def create(next_creator: Callable[..., tf.Variable], **given: Any) -> tf.Variable:
        if not tf.is_symbolic_tensor(given.get("initial_value")):
            given["experimental_enable_variable_lifting"] = False
            created.append(str(given.get("name")))
        return next_creator(**given)

    return create


def simulated_tpu(
    *,
    hosts: int = 1,
    cores_per_host: int = 2,
    embedding_feature: EmbeddingFeature = "V1",
    sparse_cores: int | None = None,
) -> SimulatedTPUStrategy:
    """Create a strategy over hosts x cores_per_host logical CPU devices, in the state of a newly initialized TPU.

    Args:
      hosts: number of hosts, >= 1.
      cores_per_host: number of cores of each host, >= 1.
      embedding_feature: "V1" emulates a TPU with an embedding engine (`engines.TPUEmbedding`), "V0" one without
        (`engines.TPUEmbeddingV0`), such as v5e, and "V2" one with SparseCores, such as v5p and v6e; a core is then a
        chip.
      sparse_cores: number of SparseCores of each chip, for "V2": 4 (the default) is a v5p, 2 a v6e.

    Raises:
      ConfigError (ValueError): an argument is out of range.
      EngineError (RuntimeError): TensorFlow already runs with fewer logical devices.
    """
    sizes = {"hosts": hosts, "cores_per_host": cores_per_host, "sparse_cores": sparse_cores}
    for name, value in sizes.items():
        if name == "sparse_cores" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"`{name}` of simulated_tpu is {value!r}: it must be a whole number >= 1.")
    if embedding_feature not in get_args(EmbeddingFeature):
        raise ConfigError(
            f"`embedding_feature` of simulated_tpu is {embedding_feature!r}: it must be 'V0', 'V1' or 'V2'."
        )
    if embedding_feature != "V2" and sparse_cores is not None:
        raise ConfigError(
            f"`sparse_cores` of simulated_tpu is {sparse_cores!r}: only embedding_feature='V2' has SparseCores; leave "
            "it out."
        )
    with _lock:
        _ensure_devices(hosts * cores_per_host + 1)
    per_chip = (4 if sparse_cores is None else sparse_cores) if embedding_feature == "V2" else 0
    return SimulatedTPUStrategy(hosts, cores_per_host, embedding_feature, per_chip)


def initialize_simulated_tpu(strategy: SimulatedTPUStrategy) -> None:
    """Release the engine of a strategy, as `tf.tpu.experimental.initialize_tpu_system` does on a TPU."""
    strategy.embedding_engine = None


def _ensure_devices(needed: int) -> None:
    physical = tf.config.list_physical_devices("CPU")[0]
    try:
        if len(tf.config.get_logical_device_configuration(physical) or ()) < needed:
            count = max(needed, _SPARE_CORES + 1)
            tf.config.set_logical_device_configuration(physical, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError:  # TensorFlow is running, and its devices are fixed
        pass
    existing = len(tf.config.list_logical_devices("CPU"))
    if existing < needed:
        raise EngineError(
            f"simulated_tpu needs {needed} logical CPU devices (one per core and one for the host), but TensorFlow "
            f"already runs with {existing}: call simulated_tpu, with the largest topology first, before any other "
            "TensorFlow operation of the process."
        )


def core_of(context: ReplicaContext) -> int:
    """Return the number of the core on which a replica runs."""
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def core_at(strategy: SimulatedTPUStrategy, device: str) -> int:
    """Return the number of the core of a device.

    Raises:
      DataError (ValueError): the device is not a core.
    """
    devices = [tf.DeviceSpec.from_string(known) for known in strategy.extended.worker_devices]
    given = tf.DeviceSpec.from_string(device)
    for core, known in enumerate(devices):
        if given.device_index is not None and known.make_merged_spec(given) == known:
            return core
    names = [known.to_string() for known in devices]
    raise DataError(f"Non-TPU device {device} passed to enqueue. The simulated cores are {names}.")


def local_values(strategy: SimulatedTPUStrategy, values: Sequence[Any], core: int) -> list[Any]:
    """Return the values of one core; a value that is not per replica is of all cores."""
    everywhere = [strategy.experimental_local_results(value) for value in values]
    return [local[core] if len(local) > 1 else local[0] for local in everywhere]


def cannot_meet(error: RuntimeError) -> bool:
    """Return whether a merge_call failed because its caller is in control flow or a nested function."""
    return not isinstance(error, EngineError) and "merge_call" in str(error)


def refuse_nested(context: ReplicaContext) -> None:
    """Refuse a call of enqueue inside control flow or a nested function.

    Raises:
      EngineError (RuntimeError): the call is inside one of these, where the cores cannot synchronize.
    """
    try:
        context.merge_call(lambda strategy: None)
    except RuntimeError as error:
        raise EngineError(
            "Current graph does not match graph which contains TPUReplicateContext. This is most likely due to the "
            "fact that enqueueing embedding data is called inside control flow or a tf.function inside `strategy.run`. "
            "Call enqueue outside of strategy.run, or at the top level of the function given to it."
        ) from error

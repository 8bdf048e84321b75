"""A TPU slice that is described and not there: the strategy over it, to trace programs with and never to run them.

Everything here is public TensorFlow API but for one moment: `tf.tpu.experimental.embedding.TPUEmbedding.build`
asks the TPU, in Python, whether it has an engine already, and without a TPU nobody answers. While `build`
runs, `no_engine_yet` answers no in the place of that one tensor.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.planning.topology import Topology

Hardware: TypeAlias = Literal["V0", "V1", "V2"]

_HARDWARE: Mapping[str, Hardware] = {"v2": "V1", "v3": "V1", "v4": "V1", "v5e": "V0", "v5p": "V2", "v6e": "V2"}
# The numbers of TPUHardwareFeature.EmbeddingFeature, and how many SparseCores a chip has.
_FEATURE_NUMBERS: Mapping[Hardware, int] = {"V0": 0, "V1": 1, "V2": 2}
_SPARSE_CORES = {"v5p": 4, "v6e": 2}
_QUESTION = "IsTPUEmbeddingInitialized"
_lock = threading.Lock()


def hardware_of(topology: Topology) -> Hardware:
    """The generation of embedding hardware in a slice: "V1", "V2" (SparseCore), or "V0" for none.

    A real TPU tells by itself (`tf.tpu.experimental.HardwareFeature`); this is what its name lets expect.
    """
    return _HARDWARE[_generation(topology)]


def _generation(topology: Topology) -> str:
    return topology.name.replace("v5litepod", "v5e").partition("-")[0]


def described_strategy(topology: Topology, hardware: Hardware) -> Any:
    """A real `tf.distribute.TPUStrategy` over the slice; make it, and all that it is to hold, in a `tf.Graph`.

    Args:
      topology: hosts and cores.
      hardware: what the strategy's `tpu_hardware_feature` answers.

    Raises:
      ConfigError: TensorFlow executes eagerly, where variables would be put on devices that are not there.
    """
    if tf.executing_eagerly():
        raise ConfigError("described_strategy was called eagerly: call it within `with tf.Graph().as_default():`.")
    return tf.distribute.TPUStrategy(_DescribedTPU(topology, hardware))


class _DescribedTPU(tf.distribute.cluster_resolver.ClusterResolver):
    """Answers what TPUStrategy asks about a cluster, from a description."""

    def __init__(self, topology: Topology, hardware: Hardware) -> None:
        self._topology = topology
        self._hardware = hardware

    def get_tpu_system_metadata(self) -> Any:
        """The cores, host by host, and a CPU for each host."""
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
    def tpu_hardware_feature(self) -> Any:
        """What the proto TPUHardwareFeature would say."""
        return types.SimpleNamespace(
            embedding_feature=_FEATURE_NUMBERS[self._hardware],
            num_embedding_devices_per_chip=_SPARSE_CORES.get(_generation(self._topology), 0),
        )

    def cluster_spec(self) -> Any:
        """One worker per host, under addresses that nobody calls."""
        return tf.train.ClusterSpec({"worker": [f"host-{host}:8470" for host in range(self._topology.hosts)]})

    def master(self, task_type: Any = None, task_id: Any = None, rpc_layer: Any = None) -> str:
        """None."""
        return ""

    def num_accelerators(self, task_type: Any = None, task_id: Any = None, config_proto: Any = None) -> dict[str, int]:
        """The cores of one host."""
        return {"TPU": self._topology.cores_per_host}


@contextlib.contextmanager
def no_engine_yet() -> Iterator[None]:
    """Answer False where `build` asks in Python whether the TPU has an embedding engine already.

    The answer hangs on `tf.Tensor`, which all threads share: hence the lock, and keep the body short. Every other
    tensor, in any thread, answers as ever. Where TensorFlow stops asking, nothing changes.
    """
    with _lock:
        as_ever = tf.Tensor.__bool__

        def answer(tensor: Any) -> bool:
            asked = not hasattr(tensor, "numpy") and tensor.op.type == _QUESTION
            return False if asked else bool(as_ever(tensor))

        tf.Tensor.__bool__ = answer
        try:
            yield
        finally:
            tf.Tensor.__bool__ = as_ever

"""Where to train: the one function that chooses, and refuses what cannot be."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import ConfigError
from embedding_core.training.config import Strategy

__all__ = ["Placement", "choose_placement"]

_log = logging.getLogger(__name__)


class Placement(NamedTuple):
    """Where tables and dense part are.

    Attributes:
      kind: "cpu" or "gpu".
      device: TensorFlow's name of the device.
    """

    kind: str
    device: str

    def scope(self) -> Any:
        """The context in which engine, model and optimizer are made and run."""
        return tf.device(self.device)

    def make_engine(self, config: EmbeddingConfig, seed: int) -> HostEngine:
        """The engine that holds the tables; each has an optimizer."""
        return HostEngine(config, seed=seed)


_CPU, _GPU = Placement("cpu", "/CPU:0"), Placement("gpu", "/GPU:0")


def choose_placement(strategy: Strategy) -> Placement:
    """The placement that a strategy of the configuration means on this machine.

    Raises:
      ConfigError: the device is not there, or training on it is not possible yet.
    """
    gpu, tpu = (bool(tf.config.list_physical_devices(kind)) for kind in ("GPU", "TPU"))
    if strategy == "gpu" and not gpu:
        raise ConfigError("`strategy` is 'gpu', but TensorFlow finds no GPU here: choose 'auto' or 'cpu'.")
    if strategy == "tpu" and not tpu:
        raise ConfigError("`strategy` is 'tpu', but TensorFlow finds no TPU here: choose 'auto' or 'cpu'.")
    if strategy in {"tpu", "simulated_tpu"}:
        raise ConfigError(
            f"`strategy` is {strategy!r}: this version has no engine for it yet; choose 'auto', 'cpu' or 'gpu'."
        )
    if strategy == "auto" and tpu:
        _log.warning("a TPU is there, but this version has no engine for it yet: training on the %s", _other(gpu))
    return _GPU if strategy == "gpu" or (strategy == "auto" and gpu) else _CPU


def _other(gpu: bool) -> str:
    return "GPU" if gpu else "CPU"

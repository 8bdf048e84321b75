"""Holds and trains embedding tables: in this process, or on a real or simulated TPU."""

from embedding_core.engines.host import HostEngine
from embedding_core.engines.simulated_strategy import SimulatedTPUStrategy, initialize_simulated_tpu, simulated_tpu
from embedding_core.engines.tensorcore import TPUEmbeddingV0
from embedding_core.engines.tpu_embedding import TPUEmbedding

__all__ = [
    "HostEngine",
    "SimulatedTPUStrategy",
    "TPUEmbedding",
    "TPUEmbeddingV0",
    "initialize_simulated_tpu",
    "simulated_tpu",
]

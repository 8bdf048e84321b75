"""Keras layers over embedding tables: drop-ins for those of TensorFlow Recommenders, on TPU, CPU and GPU."""

from embedding_core.layer.embedding import TPUEmbedding
from embedding_core.layer.keras_optimizers import translate_keras_optimizer
from embedding_core.layer.partial_embedding import PartialTPUEmbedding
from embedding_core.layer.tpu_tables import hardware_feature

__all__ = ["PartialTPUEmbedding", "TPUEmbedding", "hardware_feature", "translate_keras_optimizer"]

"""Keras layers over embedding tables: drop-ins for those of TensorFlow Recommenders, on TPU, CPU and GPU."""

from embedding_core.layer.embedding import TPUEmbedding
from embedding_core.layer.engine_choice import hardware_feature
from embedding_core.layer.keras_optimizers import translate_keras_optimizer
from embedding_core.layer.partial_embedding import PartialTPUEmbedding

__all__ = ["PartialTPUEmbedding", "TPUEmbedding", "hardware_feature", "translate_keras_optimizer"]

"""Defines tables, features, optimizers and vocabularies of embedding models; does not depend on TFX, Beam or KFP.

Importing this package loads neither TensorFlow nor TFX; only some of its submodules need TensorFlow.
"""

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, InitializerConfig, TableConfig
from embedding_core.errors import EmbeddingError
from embedding_core.optimizers import FTRL, SGD, Adagrad, AdagradMomentum, Adam

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "ColumnConfig",
    "EmbeddingConfig",
    "EmbeddingError",
    "FeatureConfig",
    "InitializerConfig",
    "TableConfig",
]

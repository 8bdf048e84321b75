"""Keras layers over embedding tables: drop-ins for those of TensorFlow Recommenders, on TPU, CPU and GPU.

These are for tf_keras; `embedding_core.layer.keras3` has the layer for Keras 3.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedding_core.layer.embedding import TPUEmbedding
    from embedding_core.layer.engine_choice import hardware_feature
    from embedding_core.layer.keras_optimizers import translate_keras_optimizer
    from embedding_core.layer.partial_embedding import PartialTPUEmbedding

_MODULES = {
    "PartialTPUEmbedding": "partial_embedding",
    "TPUEmbedding": "embedding",
    "hardware_feature": "engine_choice",
    "translate_keras_optimizer": "keras_optimizers",
}

__all__ = ["PartialTPUEmbedding", "TPUEmbedding", "hardware_feature", "translate_keras_optimizer"]


def __getattr__(name: str) -> Any:
    # Lazy, so that programs of Keras 3 do not load tf_keras.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

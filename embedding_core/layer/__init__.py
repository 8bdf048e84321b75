"""Keras layers over embedding tables: drop-ins for those of TensorFlow Recommenders, on TPU, CPU and GPU.

These are for tf_keras; `embedding_core.layer.keras3` has the layer for Keras 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedding_core.layer.embedding import TPUEmbedding
    from embedding_core.layer.engine_choice import hardware_feature
    from embedding_core.layer.keras_optimizers import translate_keras_optimizer
    from embedding_core.layer.partial_embedding import PartialTPUEmbedding

__all__ = ["PartialTPUEmbedding", "TPUEmbedding", "hardware_feature", "translate_keras_optimizer"]


def __getattr__(name: str) -> Any:
    # Lazy, so that programs of Keras 3 do not load tf_keras. Plain imports, which the digest of the code follows.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(__all__)}")
    from embedding_core.layer.embedding import TPUEmbedding
    from embedding_core.layer.engine_choice import hardware_feature
    from embedding_core.layer.keras_optimizers import translate_keras_optimizer
    from embedding_core.layer.partial_embedding import PartialTPUEmbedding

    found = (PartialTPUEmbedding, TPUEmbedding, hardware_feature, translate_keras_optimizer)
    return next(member for member in found if member.__name__ == name)

"""TFX components for embedding tables. Importing this package loads neither TFX nor TensorFlow."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "CheckpointLoader": "components.checkpoint_loader",
    "CheckpointRetriever": "components.checkpoint_retriever",
    "EmbeddingCheckpoint": "components.artifacts",
    "EmbeddingPusher": "components.pusher",
    "EmbeddingTrainer": "components.trainer",
    "Evaluator": "components.evaluator",
    "ExampleGen": "components.example_gen",
    "QualityGate": "components.quality_gate",
    "StatisticsGen": "components.statistics_gen",
    "TableConfigGen": "components.table_config_gen",
    "TableConfigs": "components.artifacts",
    "TableHealth": "components.table_health",
    "Vocabularies": "components.artifacts",
    "Transform": "components.transform",
    "VocabularyGen": "components.vocabulary_gen",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)

"""Defines the error of deltas."""

from __future__ import annotations

from embedding_core.errors import EmbeddingError


class DeltaError(EmbeddingError, RuntimeError):
    """No delta leads from what is served to another model, or a delta was not applied."""

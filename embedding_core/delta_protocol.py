"""Names what a served model and its clients agree on about deltas, and defines the error of deltas."""

from __future__ import annotations

from embedding_core.errors import EmbeddingError

APPLY_DELTA = "apply_delta"
"""The signature that applies a delta."""
MODEL_DIGEST = "model_digest"
"""The output that gives the digest of what is served."""


class DeltaError(EmbeddingError, RuntimeError):
    """No delta leads from what is served to another model, or a delta was not applied."""

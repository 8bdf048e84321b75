"""Says what a served model and its clients agree on about deltas: names, and what a secret is; defines their error."""

from __future__ import annotations

from embedding_core.errors import ConfigError, EmbeddingError

APPLY_DELTA = "apply_delta"
"""The signature that applies a delta."""
MODEL_DIGEST = "model_digest"
"""The output that gives the digest of what is served."""
STATE_OUTPUTS = (MODEL_DIGEST,)
"""The outputs that say what answered, beside the answer."""
_MIN_SECRET = 16


class DeltaError(EmbeddingError, RuntimeError):
    """No delta leads from what is served to another model, or a delta was not applied."""


def require_secret(secret: bytes) -> None:
    """Refuse a secret that is easily guessed.

    Raises:
      ConfigError: it has fewer than 16 bytes.
    """
    if len(secret) < _MIN_SECRET:
        raise ConfigError(
            f"the secret for deltas has {len(secret)} bytes: it needs at least {_MIN_SECRET}, since everyone who can "
            "read a version can try secrets; make one with `openssl rand -hex 32`."
        )

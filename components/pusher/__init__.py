"""EmbeddingPusher: verifies that the exported model computes the same as the trained one, then publishes it."""

from __future__ import annotations

from typing import Any

__all__ = ["EmbeddingPusher"]


def __getattr__(name: str) -> Any:
    # Lazy, so that publishing or checking a version does not wait 20 seconds for the import of TFX.
    if name != "EmbeddingPusher":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has EmbeddingPusher")
    from components.pusher.component import EmbeddingPusher

    return EmbeddingPusher

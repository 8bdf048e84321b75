"""EmbeddingPusher: proves that the exported model computes what was trained, then publishes it in one rename."""

from __future__ import annotations

from typing import Any

__all__ = ["EmbeddingPusher"]


def __getattr__(name: str) -> Any:
    # Lazy, because publishing and checking a version are of use without the 20 seconds that TFX's import takes.
    if name != "EmbeddingPusher":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has EmbeddingPusher")
    from components.pusher.component import EmbeddingPusher

    return EmbeddingPusher

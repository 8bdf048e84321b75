"""Shadow: replays recorded requests on the trained model and the last pushed version, and blesses or refuses."""

from __future__ import annotations

from typing import Any

__all__ = ["Shadow"]


def __getattr__(name: str) -> Any:
    # Lazy, so that the command `shadow` does not wait 20 seconds for the import of TFX.
    if name != "Shadow":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has Shadow")
    from components.shadow.component import Shadow

    return Shadow

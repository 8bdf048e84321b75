"""VocabularyGen: counts the tokens of all categorical features in one pass. This import does not load TFX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from components.vocabulary_gen.component import VocabularyGen

__all__ = ["VocabularyGen"]


def __getattr__(name: str) -> Any:
    # Lazy, so that the configuration can import the vocabulary rules without the 20 seconds that TFX takes.
    if name != "VocabularyGen":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from components.vocabulary_gen.component import VocabularyGen

    return VocabularyGen

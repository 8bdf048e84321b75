"""ExampleGen: the user's rows as train and eval splits of tf.Examples. Importing it loads no TFX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from components.example_gen.component import ExampleGen

__all__ = ["ExampleGen"]


def __getattr__(name: str) -> Any:
    # The configuration is checked by this folder's `settings`, and its readers look at the first rows, without TFX.
    if name != "ExampleGen":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from components.example_gen.component import ExampleGen

    return ExampleGen

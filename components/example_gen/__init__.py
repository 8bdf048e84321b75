"""ExampleGen: converts the user's rows to train and eval splits of tf.Examples. Importing it does not load TFX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from components.example_gen.component import ExampleGen

__all__ = ["ExampleGen"]


def __getattr__(name: str) -> Any:
    # Checks of the configuration use `settings` and the readers of this package, and must not load TFX.
    if name != "ExampleGen":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from components.example_gen.component import ExampleGen

    return ExampleGen

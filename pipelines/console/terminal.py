"""Prints to the terminal: control characters in names, paths and tokens are escaped before they reach it."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from embedding_core.display import printable

__all__ = ["PLAIN", "SafeConsole", "echo"]

PLAIN: Any = {"markup": False, "soft_wrap": True}
"""For lines that hold paths and messages: brackets stay as they are, and lines can be copied from the screen."""

_LAYOUT = "\n\t"


class SafeConsole(Console):
    """A rich Console that escapes control characters in every text, cells of tables included."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render text as `rich.console.Console.render_str` does, with its control characters escaped."""
        return super().render_str(printable(text, keep=_LAYOUT), **options)


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print text as `typer.echo` does, with its control characters escaped."""
    typer.echo(printable(str(text), keep=_LAYOUT), err=err, nl=nl)

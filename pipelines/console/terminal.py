"""Prints to the terminal with control characters in names, paths and tokens escaped."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from embedding_core.display import printable

PLAIN: Any = {"markup": False, "soft_wrap": True}
"""Options for lines with paths and messages: brackets are not markup, and long lines are not broken, for copying."""

_LAYOUT = "\n\t"


class SafeConsole(Console):
    """A rich Console that escapes control characters in every text, cells of tables included."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render text as `rich.console.Console.render_str` does, with its control characters escaped."""
        return super().render_str(printable(text, keep=_LAYOUT), **options)


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print text as `typer.echo` does, with its control characters escaped."""
    typer.echo(printable(str(text), keep=_LAYOUT), err=err, nl=nl)

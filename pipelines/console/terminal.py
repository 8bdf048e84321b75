"""Prints to the terminal, escaped: text and tables; checks and writes the files that a user names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from embedding_core.display import printable
from embedding_core.errors import ConfigError

PLAIN: Any = {"markup": False, "soft_wrap": True}
"""Options for lines with paths and messages: brackets are not markup, and long lines are not broken, for copying."""

_LAYOUT, _UNLIMITED = "\n\t", 10_000


class SafeConsole(Console):
    """A rich Console that escapes control characters in every text, cells of tables included.

    Without a terminal, nothing limits the width, except COLUMNS of the environment.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not (self.is_terminal or "width" in options or "COLUMNS" in os.environ):
            self.width = _UNLIMITED

    def render_str(self, text: str, **options: Any) -> Text:
        """Render text as `rich.console.Console.render_str` does, with its control characters escaped."""
        return super().render_str(printable(text, keep=_LAYOUT), **options)


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print text as `typer.echo` does, with its control characters escaped."""
    typer.echo(printable(str(text), keep=_LAYOUT), err=err, nl=nl)


# Checks and writes the files that a user names on the command line.


def check_output(option: str, path: str | os.PathLike[str]) -> None:
    """Check that a file can be written.

    Raises:
      ConfigError: its folder does not exist or cannot be written to, or the path is a folder.
    """
    path = os.path.abspath(path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        problem = "No such folder"
    elif os.path.isdir(path):
        problem = "Is a directory"
    elif not os.access(folder, os.W_OK):
        problem = "Permission denied"
    else:
        return
    raise _error(option, path, problem)


def write_output(option: str, path: str | os.PathLike[str], text: str) -> None:
    """Write a file in one step: it is complete, or not written.

    Raises:
      ConfigError: it cannot be written.
    """
    new = f"{os.fspath(path)}.new"
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.remove(new)
        raise _error(option, os.fspath(path), error.strerror) from error


def _error(option: str, path: str, problem: str | None) -> ConfigError:
    return ConfigError(
        f"`{option}` is {path!r}, which cannot be written ({problem}): name a file in a folder that exists."
    )


# Prints a table of text. Columns that do not fit the screen are left out and named; no line is wrapped.

_GAP = "  "


def print_table(console: Console, title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print the columns that fit, from the first one on, and name the others below.

    Args:
      console: the console to print to, whose width limits the table.
      title: line above the table; "" for none.
      rows: cells by column; all rows have the same columns.
    """
    if not rows:
        return
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    names = _fitting(widths, console.width)
    if title:
        console.print(f"\n{title}", **PLAIN)
    for row in [dict(zip(names, names, strict=True)), *rows]:
        first, *others = names
        cells = [row[first].ljust(widths[first]), *(row[name].rjust(widths[name]) for name in others)]
        console.print(_GAP.join(cells).rstrip(), **PLAIN)
    left_out = [name for name in widths if name not in names]
    if left_out:
        console.print(f"not shown at this width: {', '.join(left_out)}", **PLAIN)


def _fitting(widths: Mapping[str, int], width: int) -> list[str]:
    """Return the first columns that fit beside each other within the width; at least one."""
    names: list[str] = []
    used = -len(_GAP)
    for name, needed in widths.items():
        used += len(_GAP) + needed
        if names and used > width:
            break
        names.append(name)
    return names

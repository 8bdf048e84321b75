"""Prints a table of text. Columns that do not fit the screen are left out and named; no line is wrapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from pipelines.console.terminal import PLAIN

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

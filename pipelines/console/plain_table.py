"""Prints a table of text. One that does not fit the screen loses whole columns, which it names; no word is broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from pipelines.console.terminal import PLAIN

__all__ = ["print_table"]

_GAP = "  "


def print_table(console: Console, title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print the columns that fit, the first ones first; what does not fit is named below.

    Args:
      console: where to print; its width counts.
      title: the line above; "" for none.
      rows: the cells by column; all rows have the same columns.
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
    """The columns that fit beside each other; the first always."""
    names: list[str] = []
    used = -len(_GAP)
    for name, needed in widths.items():
        used += len(_GAP) + needed
        if names and used > width:
            break
        names.append(name)
    return names

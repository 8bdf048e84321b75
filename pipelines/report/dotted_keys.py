"""Flattens nested figures and settings to dotted keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.report.run_report import Figures


def flatten(value: Any, key: str = "", *, with_lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield every value with its dotted key; empty mappings count as values.

    Args:
      value: a mapping, or a value in one.
      key: the key of the value; "" for the whole mapping.
      with_lists: whether the entries of a list of mappings get keys too, made of their names; else lists are values.
    """
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from flatten(item, f"{key}.{name}" if key else str(name), with_lists=with_lists)
    elif with_lists and isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        for index, item in enumerate(value):
            yield from flatten(item, f"{key}.{_name(item, index)}", with_lists=True)
    else:
        yield key, value


def _name(item: Figures, index: int) -> str:
    """Return the name of an entry of a list: its first text, if it has one."""
    return next((value for value in item.values() if isinstance(value, str)), str(index))

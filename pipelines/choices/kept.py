"""Keeps results in a JSON file, so that a command that is repeated goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from embedding_core.errors import DataError
from embedding_core.schema import Json
from embedding_core.storage import read_json, whole_file

Types: TypeAlias = Mapping[str, tuple[type, ...]]
"""The keys of a JSON object, and the types that the value of each may have."""


class KeptResults:
    """Results by key; each is in the file before the next is made.

    Args:
      path: the file; it need not exist.
      types: what every result must be.

    Raises:
      DataError: the file cannot be read, or holds something else.
    """

    def __init__(self, path: str, types: Types) -> None:
        self._path = path
        self._results: dict[str, Json] = {}
        try:
            results = read_json(path)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise DataError(f"{path!r} holds no results of a plan ({error}): delete it.") from error
        if not isinstance(results, dict):
            raise DataError(f"{path!r} holds no results of a plan (it is not a JSON object): delete it.")
        for key, result in results.items():
            if not has_types(result, types):
                raise DataError(
                    f"{path!r} holds a result that no plan wrote ({key!r}): it must have {', '.join(types)}, of the "
                    "right types; delete the file."
                )
        self._results = results

    def get(self, key: str) -> Json | None:
        """Return the result of that key; None if there is none."""
        return self._results.get(key)

    def keep(self, key: str, result: Json) -> None:
        """Write a result."""
        self._results[key] = result
        with whole_file(self._path) as new, open(new, "w", encoding="utf-8") as file:
            json.dump(self._results, file, indent=1)


def has_types(value: object, types: Types) -> bool:
    """Return whether a value is a JSON object with exactly these keys, and each has one of its types."""
    return (
        isinstance(value, dict)
        and value.keys() == types.keys()
        and all(type(value[key]) in allowed for key, allowed in types.items())
    )

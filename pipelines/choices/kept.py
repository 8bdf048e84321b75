"""Keeps results in a JSON file, so that a command that is repeated goes on where it was."""

from __future__ import annotations

import json

from embedding_core.errors import DataError
from embedding_core.schema import Json
from embedding_core.storage import whole_file


class KeptResults:
    """Results by key; each is in the file before the next is made.

    Args:
      path: the file; it need not exist.

    Raises:
      DataError: the file holds no results.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._results: dict[str, Json] = {}
        try:
            with open(path, encoding="utf-8") as file:
                self._results = json.load(file)
        except FileNotFoundError:
            return
        except ValueError as error:
            raise DataError(f"{path!r} holds no results of a plan ({error}): delete it.") from error

    def get(self, key: str) -> Json | None:
        """Return the result of that key; None if there is none."""
        return self._results.get(key)

    def keep(self, key: str, result: Json) -> None:
        """Write a result."""
        self._results[key] = result
        with whole_file(self._path) as new, open(new, "w", encoding="utf-8") as file:
            json.dump(self._results, file, indent=1)

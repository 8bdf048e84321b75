"""Adds a digest to a JSON object and verifies it when the object is read, so that damage is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from embedding_core.schema import Json
from embedding_core.storage.file_access import StrPath, read_bounded

SEAL = "sha256"
"""The default key of the digest."""


def sealed_json(facts: Mapping[str, object], seal: str = SEAL) -> bytes:
    """Serialize a JSON object, with its digest under the key `seal`."""
    return (json.dumps({**facts, seal: json_digest(facts)}, indent=2, sort_keys=True) + "\n").encode()


def unsealed_json(data: bytes | str, seal: str = SEAL) -> Json:
    """Parse what `sealed_json` returned, verify the digest, and return the object without it.

    Raises:
      ValueError: the data are not what `sealed_json` returned.
    """
    facts = _parsed(data)
    if not isinstance(facts, dict) or facts.pop(seal, None) != json_digest(facts):
        raise ValueError(f"its `{seal}` is the digest of other content")
    return facts


def read_json(path: StrPath) -> Any:
    """Return the value of a JSON file, local or at an address, that others may have written.

    Raises:
      OSError: the file is missing, cannot be read, or is not a regular file.
      ValueError: it is not JSON, or has more than `bounds.JSON_BYTES`.
    """
    return _parsed(read_bounded(path))


def _parsed(data: bytes | str) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def json_digest(facts: Mapping[str, object]) -> str:
    """Compute the sha256 of a JSON object, in hexadecimal digits; the order of its keys does not change it."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

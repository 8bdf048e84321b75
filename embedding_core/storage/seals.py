"""Seals JSON objects with a digest of themselves, so that damage is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from embedding_core.schema import Json

SEAL = "sha256"
"""The usual key of the digest."""


def sealed_json(facts: Mapping[str, object], seal: str = SEAL) -> bytes:
    """Write a JSON object with a digest of itself under the key `seal`."""
    return (json.dumps({**facts, seal: json_digest(facts)}, indent=2, sort_keys=True) + "\n").encode()


def unsealed_json(data: bytes | str, seal: str = SEAL) -> Json:
    """Read what `sealed_json` was given.

    Raises:
      ValueError: the data are not what `sealed_json` wrote.
    """
    try:
        facts = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(facts, dict) or facts.pop(seal, None) != json_digest(facts):
        raise ValueError(f"its `{seal}` is the digest of other content")
    return facts


def json_digest(facts: Mapping[str, object]) -> str:
    """Compute the sha256 of a JSON object, whatever the order of its keys, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

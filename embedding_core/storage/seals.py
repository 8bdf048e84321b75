"""Adds a digest to a JSON object and verifies it when the object is read, so that damage is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from embedding_core.schema import Json

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
    try:
        facts = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(facts, dict) or facts.pop(seal, None) != json_digest(facts):
        raise ValueError(f"its `{seal}` is the digest of other content")
    return facts


def json_digest(facts: Mapping[str, object]) -> str:
    """Compute the sha256 of a JSON object, in hexadecimal digits; the order of its keys does not change it."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

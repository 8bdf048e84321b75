"""Seals JSON objects with a digest of themselves, so that a damaged one is not believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["SEAL", "json_digest", "sealed_json", "unsealed_json"]

SEAL = "sha256"
"""The key of the digest."""


def sealed_json(facts: Mapping[str, Any]) -> bytes:
    """Write a JSON object with a digest of itself."""
    return (json.dumps({**facts, SEAL: json_digest(facts)}, indent=2, sort_keys=True) + "\n").encode()


def unsealed_json(data: bytes | str) -> dict[str, Any]:
    """Read what `sealed_json` was given.

    Raises:
      ValueError: it is not that any more.
    """
    facts = json.loads(data)
    if not isinstance(facts, dict) or facts.pop(SEAL, None) != json_digest(facts):
        raise ValueError(f"its `{SEAL}` is that of another content")
    return facts


def json_digest(facts: Mapping[str, Any]) -> str:
    """Compute the sha256 of a JSON object, whatever the order of its keys, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

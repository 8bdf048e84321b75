"""Defines the key `push.deltas`: whether, and in which sizes, pushes are deltas."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from embedding_core.deltas.protocol import require_secret
from embedding_core.errors import ConfigError
from embedding_core.schema import Json, Positive, PositiveNumber, Section, Share, Text


class Deltas(Section):
    """Deltas: pushes that hold what changed since the served version, and that a running server applies.

    Attributes:
      full_every: number of deltas after which a whole version is pushed.
      max_share: largest size of a delta, as a share of the model; if a delta is larger, a whole version is pushed.
      spare_rows: rows that a version reserves in each table for new tokens, as a share of its tokens, at least 64.
      secret_variable: environment variable of the secret that a server wants before it applies a delta. The process
        that pushes must have it. Only salted hashes of the secret are written.
    """

    full_every: Positive = 24
    max_share: PositiveNumber = 0.25
    spare_rows: Share = 0.1
    secret_variable: Text = "TFX_EMBEDDINGS_DELTA_SECRET"  # noqa: S105  (the name of a variable)

    def secret(self) -> bytes:
        """Return the secret.

        Raises:
          ConfigError: the environment variable is missing or empty, or the secret is too short.
        """
        value = os.environ.get(self.secret_variable, "")
        if not value:
            raise ConfigError(
                f"`push.deltas` needs a secret, and the environment variable {self.secret_variable!r} is not set: "
                "set it to a random text, such as that of `openssl rand -hex 32`, where the model is pushed from."
            )
        secret = os.fsencode(value)
        require_secret(secret)
        return secret


def secret_in(variable: str | None) -> bytes:
    """Return the secret in an environment variable; None is the default variable. Errors are those of `secret`."""
    return (Deltas() if variable is None else Deltas(secret_variable=variable)).secret()


class _OrBool:
    """Reads `true` as a section of defaults, and `false` as none."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        """Accept true and false."""
        found = handler(schema)
        return {**found, "anyOf": [*found.get("anyOf", ()), {"type": "boolean"}]}


def _from_bool(value: Any) -> Any:
    return ({} if value else None) if isinstance(value, bool) else value


class PushKeys(Section):
    """Keys that the room adds to the section `push`.

    Attributes:
      deltas: `true`, or settings of deltas, for servers that take over changed rows while they run. The model then has
        a signature that changes it, which clients must not reach. `false` or null pushes whole versions alone.
    """

    deltas: Annotated[Deltas | None, BeforeValidator(_from_bool), _OrBool()] = None


KEYS = {"push": PushKeys}

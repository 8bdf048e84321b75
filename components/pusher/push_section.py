"""Declares the YAML section `push`: where a model is served from, and how far it may differ from training."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from embedding_core.deltas.protocol import require_secret
from embedding_core.errors import ConfigError
from embedding_core.rows_dtype import RowsDtypeSetting
from embedding_core.schema import Json, NonNegative, Positive, PositiveNumber, Section, Share, Text
from embedding_core.top_k_config import TopK


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


class Push(Section):
    """How and where a model is pushed.

    Attributes:
      destination: folder of versions, which TensorFlow Serving watches; null is `serving` in the work_dir.
      tolerance: largest accepted difference between the results of training and serving.
      keep_last: number of versions that are kept; null is all.
      rows_dtype: type of the served rows, or a mapping of tables to types, the others being float32. float16 halves a
        table, and int8 stores n values in n + 8 bytes; `tolerance` has to allow for the lost digits.
      top_k: what the signatures `top_k` and `top_k_filtered` of a retrieval model return.
      deltas: `true`, or settings of deltas, for servers that take over changed rows while they run. The model then has
        a signature that changes it, which clients must not reach. `false` or null pushes whole versions alone.
    """

    SHORT = "destination"

    destination: Text | None = None
    tolerance: NonNegative = 1e-5
    keep_last: Positive | None = None
    rows_dtype: RowsDtypeSetting = "float32"
    top_k: TopK = TopK()
    deltas: Annotated[Deltas | None, BeforeValidator(_from_bool), _OrBool()] = None

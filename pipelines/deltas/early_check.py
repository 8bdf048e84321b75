"""Checks before a run that this process, which is going to push the model, has the secret of `push.deltas`."""

from __future__ import annotations

from components.deltas.keys import PushKeys
from pipelines.config.pipeline_config import PipelineConfig


def check(config: PipelineConfig) -> None:
    """Read the secret.

    Raises:
      ConfigError: the environment variable is missing or empty, or the secret is too short.
    """
    if isinstance(config.push, PushKeys) and config.push.deltas is not None:
        config.push.deltas.secret()

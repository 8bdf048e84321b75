"""Checks before a run that it can push deltas, and says after it whether it pushed one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from components.deltas.keys import PushKeys
from pipelines.config.pipeline_config import PipelineConfig
from pipelines.report.run_report import RunResult


def check(config: PipelineConfig) -> None:
    """Read the secret of `push.deltas`, which this process needs to push the model.

    Raises:
      ConfigError: the environment variable is missing or empty, or the secret is too short.
    """
    if isinstance(config.push, PushKeys) and config.push.deltas is not None:
        config.push.deltas.secret()


def with_form(result: RunResult, facts: Mapping[str, Any]) -> RunResult:
    """Add the number of the delta, or why a whole version was pushed, for the screen and the report.

    Args:
      result: what was pushed.
      facts: the properties of its PushedModel.
    """
    delta = _number(facts)
    version = f"{result.version}-delta-{delta}" if delta else result.version
    form = ("delta" if delta else "whole version") if "full_push" in facts else ""
    return dataclasses.replace(result, version=version, form=form, full_push=str(facts.get("full_push", "")))


def request_note(facts: Mapping[str, Any]) -> str:
    """Return a comment for a request to the version, which does not have its deltas; "" without deltas."""
    delta = _number(facts)
    return f"# As exported, before its {delta} deltas: `serve-delta` applies them to a server.\n" if delta else ""


def _number(facts: Mapping[str, Any]) -> int:
    """Return the number of the pushed delta; 0 is a whole version."""
    return int(facts.get("pushed_delta") or 0)

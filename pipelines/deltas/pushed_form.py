"""Says whether a run pushed a delta or a whole version, for the screen and the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipelines.report.run_report import RunResult


def with_form(result: RunResult, facts: Mapping[str, Any]) -> RunResult:
    """Add the number of the delta, or why a whole version was pushed.

    Args:
      result: what was pushed.
      facts: the properties of its PushedModel.
    """
    delta, full_push = int(facts.get("pushed_delta") or 0), str(facts.get("full_push", ""))
    form = ("delta" if delta else "whole version") if "full_push" in facts else ""
    if not delta:
        return dataclasses.replace(result, form=form, full_push=full_push)
    note = f"# As exported, before its {delta} deltas: `serve-delta` applies them to a server.\n"
    version = f"{result.version}-delta-{delta}"
    return dataclasses.replace(result, version=version, form=form, full_push=full_push, query=note)

"""Checks the rules on `push.deltas` that involve other sections."""

from __future__ import annotations

from components.deltas.keys import PushKeys
from embedding_core.schema import Mistakes
from embedding_core.storage import is_remote
from pipelines.config.pipeline_config import RETRIEVAL_MODELS, PipelineConfig


def _deltas_can_be_pushed(config: PipelineConfig) -> Mistakes:
    if not isinstance(config.push, PushKeys) or config.push.deltas is None:
        return
    if is_remote(config.push_destination):
        given = f"is given, but versions are pushed to {config.push_destination!r}, an object store, which has no locks"
        yield "push.deltas", f"{given}: push to a local or mounted folder, or set it to false."
    if config.model.name in RETRIEVAL_MODELS:
        given = f"is given, but `model.name` is {config.model.name!r}, whose index of candidates deltas do not change"
        yield "push.deltas", f"{given}: set it to false."


RULES = [(frozenset({"push", "work_dir", "model"}), _deltas_can_be_pushed)]
"""Rules with the sections that each reads."""

"""Checks that the requests and the version of the section `shadow` can be read."""

from __future__ import annotations

from components.shadow.keys import log_files, shadow_of
from embedding_core.errors import ConfigError
from embedding_core.schema import Mistakes
from pipelines.config.pipeline_config import PipelineConfig
from pipelines.config.sections import literal_mistakes


def _requests_are_there(config: PipelineConfig) -> Mistakes:
    section = shadow_of(config)
    if section is None:
        return
    yield from literal_mistakes("shadow.against", section.against)
    try:
        log_files(section.requests)
    except ConfigError as error:
        yield "shadow.requests", f"is {section.requests!r}: {error}"


RULES = [(frozenset({"shadow"}), _requests_are_there)]
"""Rules with the sections that each reads."""

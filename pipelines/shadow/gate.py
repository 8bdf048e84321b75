"""Defines the gate Shadow, which replays recorded requests before a push."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from components.shadow.keys import SHADOW_FILE, log_sizes, shadow_of
from pipelines.config import PipelineConfig
from pipelines.pipeline.gates import Gate, GatePage, TrainedChannels

if TYPE_CHECKING:  # TFX takes seconds to load
    from tfx.dsl.components.base.base_node import BaseNode

    from pipelines.pipeline.run_target import PreviousRun


class _Shadow(Gate):
    node, blessing, file = "Shadow", "shadow_blessing", SHADOW_FILE
    compares_with = "shadow.against"

    def is_on(self, config: PipelineConfig) -> bool:
        return shadow_of(config) is not None

    def nodes(self, config: PipelineConfig, trained: TrainedChannels, previous: PreviousRun) -> list[BaseNode]:
        from tfx.types import standard_artifacts

        from components.shadow import Shadow
        from pipelines.pipeline.embedding_pipeline import imported

        section = shadow_of(config)
        assert section is not None
        version = imported("PreviousModel", previous.versions.get(self.compares_with), standard_artifacts.PushedModel)
        component = Shadow(
            model=trained.model,
            table_configs=trained.table_configs,
            shadow=section,
            request_files=json.dumps(log_sizes(section.requests)),
            previous_model=version[0].outputs["result"] if version else None,
        )
        return [*version, component]

    def version(self, config: PipelineConfig) -> str | None:
        section = shadow_of(config)
        return None if section is None else section.against

    def page(self, figures: Mapping[str, Any]) -> GatePage:
        title = "Replayed requests"
        if "outputs" not in figures:
            return GatePage(title, figures["note"])
        from pipelines.shadow.page import shadow_html

        count = f"{figures['requests']['replayed']:,}"
        text = f"{count} recorded requests were replayed on this model and on the version of `shadow.against`:"
        return GatePage(title, text, "shadow.html", "differences, latency and memory", shadow_html(figures))


GATE = _Shadow()

"""Lists the gates, which judge a model before its push: each gives a blessing, reasons, and the figures behind them."""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from embedding_core.health import HEALTH_FILE
from embedding_core.quality_rules import QUALITY_FILE
from embedding_core.rooms import hooks
from pipelines.config import PipelineConfig
from pipelines.pipeline import component_inputs
from pipelines.pipeline.fingerprint import code_fingerprint, modules_of

if TYPE_CHECKING:  # TFX takes seconds to load
    from tfx.dsl.components.base.base_node import BaseNode
    from tfx.types import BaseChannel

    from pipelines.pipeline.run_target import PreviousRun


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedChannels:
    """Channels of what a gate may judge, each from the component that gives it its name in `pipelines.pipeline`.

    Attributes:
      base_checkpoint: the checkpoint that the run started from; None for a cold start.
    """

    examples: BaseChannel
    transform_graph: BaseChannel
    vocabularies: BaseChannel
    table_configs: BaseChannel
    model: BaseChannel
    model_run: BaseChannel
    embedding_checkpoint: BaseChannel
    base_checkpoint: BaseChannel | None = None


class GatePage(NamedTuple):
    """A section of the report about a gate.

    Attributes:
      title: heading of the section.
      text: one sentence.
      file: name of a page beside the report, which the sentence links to; "" for none.
      link: text of the link.
      html: the page.
    """

    title: str
    text: str
    file: str = ""
    link: str = ""
    html: str = ""


class Gate(ABC):
    """What the pipeline, the compiler and the reports know of a component that judges a model before its push.

    The component has the output `blessing`, with the custom properties `blessed` and `reason` (`Execution.bless`).

    Attributes:
      node: id of the component.
      blessing: input of EmbeddingPusher that takes the blessing, `<gate>_blessing`.
      file: name of the JSON file beside the blessing; its `checks` are the outcomes of rules, as `Check.to_dict`.
      compares_with: key of the YAML file that names an earlier version; "" if the gate compares with none.
    """

    node: ClassVar[str]
    blessing: ClassVar[str]
    file: ClassVar[str]
    compares_with: ClassVar[str] = ""

    def is_on(self, config: PipelineConfig) -> bool:
        """Tell whether the pipeline has the gate."""
        return True

    @abstractmethod
    def nodes(self, config: PipelineConfig, trained: TrainedChannels, previous: PreviousRun) -> list[BaseNode]:
        """Return the component, and before it the Importers that it needs; called if the gate is on."""

    def version(self, config: PipelineConfig) -> str | None:
        """Return the value of the key `compares_with`; None if the gate is off."""
        return None

    def page(self, figures: Mapping[str, Any]) -> GatePage | None:
        """Return the section of the report about these figures, if the gate has one."""
        return None


class _TableHealth(Gate):
    node, blessing, file = "TableHealth", "health_blessing", HEALTH_FILE

    def is_on(self, config: PipelineConfig) -> bool:
        return config.health is not None

    def nodes(self, config: PipelineConfig, trained: TrainedChannels, previous: PreviousRun) -> list[BaseNode]:
        from components import TableHealth

        component = TableHealth(
            embedding_checkpoint=trained.embedding_checkpoint,
            base_checkpoint=trained.base_checkpoint,
            health=config.health,
            drawn_features=component_inputs.drawn_features(config),
            code_fingerprint=code_fingerprint(config, "table_health"),
        )
        return [component]


class _QualityGate(Gate):
    node, blessing, file = "QualityGate", "quality_blessing", QUALITY_FILE

    def nodes(self, config: PipelineConfig, trained: TrainedChannels, previous: PreviousRun) -> list[BaseNode]:
        from components import QualityGate

        component = QualityGate(
            model_run=trained.model_run,
            examples=trained.examples,
            transform_graph=trained.transform_graph,
            vocabularies=trained.vocabularies,
            table_configs=trained.table_configs,
            rules=component_inputs.quality_rules(config),
            seed=config.seed,
            gates=config.gates,
            code_fingerprint=code_fingerprint(config, "quality_gate", modules_of(config.gates)),
        )
        return [component]


@functools.cache
def gates() -> tuple[Gate, ...]:
    """Return the gates of every pipeline, and those of the optional rooms that are installed."""
    return (_TableHealth(), _QualityGate(), *(room.GATE for room in hooks("pipelines", "gate")))

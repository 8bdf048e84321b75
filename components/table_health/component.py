"""Defines TableHealth, the component that judges the embedding tables of a model before its push."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec

from components import component_spec as keys
from components.component_spec import DeclaredComponent, channels, parameters
from components.table_health.executor import Executor
from embedding_core.health import Health


class TableHealth(DeclaredComponent, base_component.BaseComponent):
    """Judges the embedding tables of a model before its push, alone and against those that it started from.

    Metrics of a whole model hardly notice a sick table. This component measures each table: norms, rows that are zero
    or equal, columns that are constant, and by token how the rows changed since the previous push. EmbeddingPusher
    takes this blessing in addition to those of Evaluator and QualityGate.

    Component `outputs` contains:
      - `blessing`: Channel of type `standard_artifacts.ModelBlessing`: `health.json` with every figure, and the
        findings. Custom properties: `blessed` (1 or 0), `reason` (what was found), and `health` (figures by table and
        findings, JSON).
    """

    PARAMETERS = parameters({keys.RULES: str}, optional={keys.DRAWN_FEATURES: str, keys.CODE_FINGERPRINT: str})
    INPUTS = channels(keys.EMBEDDING_CHECKPOINT, optional=[keys.BASE_CHECKPOINT])
    OUTPUTS = channels(keys.BLESSING)
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        embedding_checkpoint: types.BaseChannel,
        base_checkpoint: types.BaseChannel | None = None,
        health: Health | None = None,
        drawn_features: Sequence[str] = (),
        code_fingerprint: str | None = None,
    ) -> None:
        """Construct a TableHealth.

        Args:
          embedding_checkpoint: a channel of `EmbeddingCheckpoint`, from CheckpointRetriever: the trained tables.
          base_checkpoint: a channel of `EmbeddingCheckpoint`: the tables that the training started from, as
            CheckpointLoader got them. Without it, only the figures of the tables themselves are measured.
          health: the bounds of the figures; None means `Health()`.
          drawn_features: features whose tokens training also draws, such as negatives.
          code_fingerprint: digest of the code that runs, so that the cache misses when the code changes.
        """
        super().__init__(
            embedding_checkpoint=embedding_checkpoint,
            base_checkpoint=base_checkpoint,
            rules=json.dumps((health or Health()).to_mapping(), sort_keys=True),
            drawn_features=json.dumps(list(drawn_features)) if drawn_features else None,
            code_fingerprint=code_fingerprint,
        )

"""The executor of Transform: TFX's own, given the ranges of an earlier model's dense features."""

from __future__ import annotations

import json
import os
from typing import Any

from tfx import types
from tfx.types import artifact_utils
from tfx.types.standard_component_specs import CUSTOM_CONFIG_KEY

from components.compat import TransformExecutor
from components.record import record_lineage
from embedding_core.checkpoint.dense import DENSE, read_dense

__all__ = ["Executor"]

BASE_CHECKPOINT_KEY = "base_checkpoint"
RANGES_KEY = "ranges"
"""The key of `custom_config` under which `preprocessing_fn` finds the ranges, by dense feature."""


class Executor(TransformExecutor):
    """TFX's executor, which adds to `custom_config` what the base checkpoint records."""

    def Do(  # noqa: N802
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Analyse the train split and write the transform graph.

        Args:
          input_dict: `examples`, `schema`, and if dense features keep their ranges `base_checkpoint`.
          output_dict: `transform_graph`, one artifact.
          exec_properties: the parameters of the component.

        Raises:
          CheckpointError: the dense part of the base checkpoint is damaged.
        """
        own = {key: value for key, value in input_dict.items() if key != BASE_CHECKPOINT_KEY}
        config = json.loads(exec_properties.get(CUSTOM_CONFIG_KEY) or "{}")
        if input_dict.get(BASE_CHECKPOINT_KEY):
            base = artifact_utils.get_single_uri(input_dict[BASE_CHECKPOINT_KEY])
            dense = read_dense(os.path.join(base, DENSE))
            config[RANGES_KEY] = {} if dense is None else dict(dense.ranges)
        super().Do(own, output_dict, {**exec_properties, CUSTOM_CONFIG_KEY: json.dumps(config)})
        record_lineage("Transform", input_dict, output_dict)

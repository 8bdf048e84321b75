"""The executor of Transform: TFX's own, given the ranges of an earlier model's dense features."""

from __future__ import annotations

import json
import os
from typing import Any

from tfx_bsl.tfxio.tf_example_record import TFExampleRecord

from components import spec_keys as keys
from components.base_executor import ComponentExecutor, Execution
from components.compat import TransformExecutor
from components.transform.batched_examples import BatchedExamples
from embedding_core.checkpoint.dense import DENSE, read_dense

_RANGES = "ranges"
"""The key of `custom_config` under which `preprocessing_fn` finds the ranges, by dense feature."""


class Executor(ComponentExecutor, TransformExecutor):
    """TFX's executor, which adds to `custom_config` what the base checkpoint records."""

    COMPONENT = "Transform"

    def execute(self, execution: Execution) -> None:
        """Analyse the train split and write the transform graph.

        Raises:
          CheckpointError: the dense part of the base checkpoint is damaged.
        """
        config = execution.json(keys.CUSTOM_CONFIG) or {}
        for base in execution.given_uris(keys.BASE_CHECKPOINT).values():
            dense = read_dense(os.path.join(base, DENSE))
            config[_RANGES] = {} if dense is None else dict(dense.ranges)
        inputs = {key: artifacts for key, artifacts in execution.inputs.items() if key != keys.BASE_CHECKPOINT}
        properties = {**execution.properties, keys.CUSTOM_CONFIG: json.dumps(config)}
        TransformExecutor.Do(self, inputs, execution.outputs, properties)

    def _CreateTFXIO(self, dataset: Any, schema: Any) -> Any:  # noqa: N802  # as TFX names it
        """Read tf.Examples in batches; leave every other format to TFX."""
        reader = super()._CreateTFXIO(dataset, schema)
        if type(reader) is not TFExampleRecord:
            return reader
        return BatchedExamples(dataset.file_pattern, schema=schema, telemetry_descriptors=reader.telemetry_descriptors)

"""EmbeddingTrainer as a Vertex AI CustomJob of its own, so that it gets a TPU which a pipeline's task cannot have."""

from __future__ import annotations

from typing import Any

from tfx import types
from tfx.dsl.components.base import executor_spec
from tfx.extensions.google_cloud_ai_platform.trainer import executor as vertex_trainer
from tfx.types import artifact_utils

from components.trainer.component import EmbeddingTrainer
from components.trainer.executor import MODEL_KEY, MODEL_RUN_KEY, Executor, put_facts

__all__ = ["VertexEmbeddingTrainer", "VertexExecutor"]


class VertexExecutor(vertex_trainer.GenericExecutor):
    """Starts the CustomJob that `custom_config` describes, waits for it, and records what came of it."""

    def _GetExecutorClass(self) -> type[Any]:  # noqa: N802
        return Executor

    def Do(  # noqa: N802
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Train in a job of its own, and record facts on the outputs: the job cannot hand those back itself.

        Args:
          input_dict: as `EmbeddingTrainer`'s executor has it.
          output_dict: `model` and `model_run`, one artifact each.
          exec_properties: the parameters of the component.

        Raises:
          RuntimeError: the job failed; its log says why.
        """
        super().Do(input_dict, output_dict, exec_properties)
        put_facts([artifact_utils.get_single_instance(output_dict[key]) for key in (MODEL_KEY, MODEL_RUN_KEY)])


class VertexEmbeddingTrainer(EmbeddingTrainer):
    """EmbeddingTrainer whose work is done in a Vertex AI CustomJob.

    Its `custom_config` also has `ai_platform_enable_vertex`, `ai_platform_vertex_region`, and
    `ai_platform_training_args`: `project` and `worker_pool_specs`, as Vertex's API has them.

    Component `outputs` contains:
      - `model` and `model_run`, as `EmbeddingTrainer`.
    """

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(VertexExecutor)

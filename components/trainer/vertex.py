"""Runs EmbeddingTrainer as a Vertex AI CustomJob: the job can have a TPU, but a task of a pipeline cannot."""

from __future__ import annotations

from tfx.dsl.components.base import executor_spec
from tfx.extensions.google_cloud_ai_platform.trainer import executor as vertex_trainer

from components import component_spec as keys
from components.base_executor import Artifacts, Execution, Properties
from components.trainer.component import EmbeddingTrainer
from components.trainer.executor import Executor, put_facts


class VertexExecutor(vertex_trainer.GenericExecutor):
    """Starts the CustomJob that `custom_config` describes, waits for it, and records its results."""

    def _GetExecutorClass(self) -> type[Executor]:  # noqa: N802
        return Executor

    def Do(self, inputs: Artifacts, outputs: Artifacts, properties: Properties) -> None:  # noqa: N802
        """Train in a separate job, and record facts on the outputs: the job itself cannot hand them back.

        Args:
          inputs: as `EmbeddingTrainer`'s executor has them.
          outputs: `model` and `model_run`, one artifact each.
          properties: the parameters of the component.

        Raises:
          RuntimeError: the job failed; see its log.
        """
        super().Do(inputs, outputs, properties)
        execution = Execution(inputs, outputs, properties)
        put_facts([execution.output(key) for key in (keys.MODEL, keys.MODEL_RUN)])


class VertexEmbeddingTrainer(EmbeddingTrainer):
    """EmbeddingTrainer whose work is done in a Vertex AI CustomJob.

    Its `custom_config` also has `ai_platform_enable_vertex`, `ai_platform_vertex_region` and
    `ai_platform_training_args`. The last holds `project` and `worker_pool_specs`, as in Vertex's API.

    Component `outputs` contains:
      - `model` and `model_run`, as `EmbeddingTrainer`.
    """

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(VertexExecutor)

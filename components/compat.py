"""Collects every private or version-sensitive name of TFX that the project uses (TFX 1.16 and 1.21).

A port to another TFX version starts, and should end, here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# Base class and driver of our ExampleGen, neither documented by TFX; ExampleGen's executor and parameters are our own.
from tfx.components.example_gen.component import FileBasedExampleGen
from tfx.components.example_gen.driver import FileBasedDriver
from tfx.components.example_gen.utils import FINGERPRINT_PROPERTY_NAME

# The executor that our Pusher extends: it reads blessings and model paths, and marks a PushedModel for other tools.
from tfx.components.pusher.executor import Executor as PusherExecutor

# StatisticsGen's executor, which ours calls for exact statistics.
from tfx.components.statistics_gen.executor import Executor as StatisticsExecutor

# The local runner's parts: `LocalDagRunner` itself reports neither which node runs nor which was cached.
from tfx.dsl.compiler.constants import PIPELINE_RUN_ID_PARAMETER_NAME
from tfx.orchestration import metadata

# The registry of a notebook's visualizations, which TFX calls experimental; it loads nothing of notebooks.
from tfx.orchestration.experimental.interactive import visualizations
from tfx.orchestration.local import runner_utils
from tfx.orchestration.portable.launcher import Launcher
from tfx.orchestration.portable.runtime_parameter_utils import substitute_runtime_parameter
from tfx.orchestration.portable.tfx_runner import IrBasedRunner

__all__ = [
    "FINGERPRINT_PROPERTY_NAME",
    "PIPELINE_RUN_ID_PARAMETER_NAME",
    "CheckedLauncher",
    "FileBasedDriver",
    "FileBasedExampleGen",
    "IrBasedRunner",
    "PusherExecutor",
    "StatisticsExecutor",
    "metadata",
    "register_visualization",
    "runner_utils",
    "substitute_runtime_parameter",
    "tracked_by_transform_layer",
]


def tracked_by_transform_layer(layer: Any) -> Any:
    """Return the objects that hold the resources of a `tft.TransformFeaturesLayer` (TFT 1.16 and 1.21)."""
    return layer._saved_model_loader_tracked_dict


def register_visualization(artifact_type: Any, page: Callable[[Any], str]) -> None:
    """Let `InteractiveContext.show` show artifacts of a type as the HTML that `page` returns."""

    def display(self: Any, artifact: Any) -> None:
        from IPython.display import HTML, display

        display(HTML(page(artifact)))

    members = {"ARTIFACT_TYPE": artifact_type, "display": display}
    visualizations.get_registry().register(
        type(f"{artifact_type.__name__}Visualization", (visualizations.ArtifactVisualization,), members)
    )


class CheckedLauncher(Launcher):
    """Launches a node; calls back before its executor runs, and before its outputs are published.

    The outputs and what the second callback writes on them are published in one transaction.
    """

    def __init__(
        self,
        *,
        before_run: Callable[[Iterable[Any]], None],
        before_publication: Callable[[Iterable[Any]], None],
        **given: Any,
    ) -> None:
        """Take the callbacks and the arguments of `Launcher`.

        Args:
          before_run: called with the node's input artifacts, as ML Metadata has them, unless the node comes from the
            cache; if it raises an error, the node ends.
          before_publication: called with the node's output artifacts, as ML Metadata is going to have them.
          given: the arguments of `Launcher`.
        """
        super().__init__(**given)
        self._before_run = before_run
        self._before_publication = before_publication

    def _run_executor(self, execution_info: Any) -> Any:
        inputs = {
            artifact.id: artifact.mlmd_artifact for each in execution_info.input_dict.values() for artifact in each
        }
        self._before_run(inputs.values())
        return super()._run_executor(execution_info)

    def _publish_successful_execution(
        self, execution_id: int, contexts: Any, output_dict: Any, executor_output: Any
    ) -> None:
        updated = executor_output.output_artifacts if executor_output else {}
        for key, artifacts in output_dict.items():
            # If the executor returned its own artifacts for an output, they replace TFX's.
            self._before_publication(
                updated[key].artifacts if key in updated else [artifact.mlmd_artifact for artifact in artifacts]
            )
        super()._publish_successful_execution(execution_id, contexts, output_dict, executor_output)

"""Defines the executor of Shadow, which replays requests on two models, and writes a blessing with the figures."""

from __future__ import annotations

from tfx.dsl.components.base import base_executor
from tfx.utils import path_utils

from components import component_spec as keys
from components import progress
from components.artifact_files import read_embedding_config
from components.base_executor import ComponentExecutor, Execution
from components.shadow.keys import SHADOW_FILE, log_sizes
from components.shadow.request_log import read_requests
from embedding_core.schema import Json
from embedding_core.shadow.replay import VersionProcess, replay
from embedding_core.shadow.request_rows import Visibility
from embedding_core.shadow.shadow_rules import ShadowRules

PREVIOUS_MODEL, REQUESTS, REQUEST_FILES = "previous_model", "requests", "request_files"
"""Keys of an input and of parameters."""
_NOTHING = "no version was pushed yet, so the model was not compared."


class Executor(ComponentExecutor, base_executor.BaseExecutor):
    """Replays requests on the last pushed version and on the trained model, and applies the rules."""

    COMPONENT = "Shadow"

    def execute(self, execution: Execution) -> None:
        """Write `shadow.json`, and bless the model if every rule is met or nothing was pushed yet.

        Raises:
          EmbeddingError: the log is missing or damaged, or a model does not load.
        """
        files = log_sizes(execution.properties[REQUESTS])
        execution.files_read.extend({"path": file["path"], "size": file["size"]} for file in files)
        figures: Json = {"passed": True, "reason": "", "note": _NOTHING}
        if execution.inputs.get(PREVIOUS_MODEL):
            figures = _replayed(execution)
        execution.bless(
            blessed=figures["passed"],
            reason=figures["reason"],
            file=SHADOW_FILE,
            figures=figures,
            note=figures.get("note", ""),
        )


def _replayed(execution: Execution) -> Json:
    """Replay the requests, and return the figures."""
    config = read_embedding_config(execution.uri(keys.TABLE_CONFIGS))
    trained = path_utils.serving_model_path(execution.uri(keys.MODEL))
    with VersionProcess(execution.uri(PREVIOUS_MODEL)) as old, VersionProcess(trained) as new:
        return replay(
            (old, new),
            read_requests(execution.properties[REQUESTS]),
            ShadowRules.from_mapping(execution.json(keys.RULES)),
            Visibility.of(config),
            lambda done: progress.report("Shadow", done, None, unit="requests"),
            other_k=True,  # `push.top_k` says how many candidates are served, which the trainer's model does not know
        ).to_json()

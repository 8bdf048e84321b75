"""The executor of EmbeddingTrainer: hands artifacts to a run_fn, and records what came of it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from tfx import types
from tfx.components.trainer import executor as trainer_executor
from tfx.components.trainer.fn_args_utils import FnArgs
from tfx.dsl.io import fileio
from tfx.types import artifact_utils

from components.record import record_lineage
from embedding_core.training.finished_run import RunDescription
from embedding_core.training.history import History

__all__ = ["Executor", "put_facts"]

EXAMPLES_KEY = "examples"
VOCABULARIES_KEY = "vocabularies"
TABLE_CONFIGS_KEY = "table_configs"
TRANSFORM_GRAPH_KEY = "transform_graph"
SCHEMA_KEY = "schema"
WARM_START_KEY = "warm_start"
TRAIN_ARGS_KEY = "train_args"
EVAL_ARGS_KEY = "eval_args"
RUN_FN_KEY = "run_fn"
CUSTOM_CONFIG_KEY = "custom_config"
MODEL_MODULE_KEY = "model_module"
CODE_FINGERPRINT_KEY = "code_fingerprint"
RESUME_DIR_KEY = "resume_dir"
TRAINING_STEPS_KEY = "training_steps"
VERTEX_PREFIX = "ai_platform_"
"""Keys of `custom_config` that are for the job that the trainer runs in, and not for the trainer."""
MODEL_KEY = "model"
MODEL_RUN_KEY = "model_run"


class Executor(trainer_executor.GenericExecutor):
    """TFX's generic trainer executor, with the artifacts and parameters that embedding tables need."""

    def _GetFnArgs(  # noqa: N802
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> FnArgs:
        """The arguments of run_fn; `custom_config` also carries what FnArgs has no field for."""
        arguments = super()._GetFnArgs(input_dict, output_dict, exec_properties)
        folders = {
            key: artifact_utils.get_single_uri(input_dict[key])
            for key in (VOCABULARIES_KEY, TABLE_CONFIGS_KEY, WARM_START_KEY)
            if input_dict.get(key)
        }
        parameters = {key: exec_properties.get(key) for key in (MODEL_MODULE_KEY, CODE_FINGERPRINT_KEY, RESUME_DIR_KEY)}
        given = {
            key: value for key, value in (arguments.custom_config or {}).items() if not key.startswith(VERTEX_PREFIX)
        }
        steps = int(exec_properties.get(TRAINING_STEPS_KEY) or 0)
        if steps > 0:
            given["training"] = {**given["training"], "steps": steps, "epochs": None}
        made = {key: [_made(one) for one in artifacts] for key, artifacts in sorted(input_dict.items())}
        arguments.custom_config = {**given, **folders, **parameters, "inputs_made": made}
        return arguments

    def Do(  # noqa: N802
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Train, and record facts on the outputs.

        Args:
          input_dict: `examples`, `vocabularies`, `table_configs`, and where given `transform_graph`, `schema`,
            `warm_start`.
          output_dict: `model` and `model_run`, one artifact each.
          exec_properties: the parameters of the component.

        Raises:
          EmbeddingError: data, configuration or training forbid it.
        """
        for key in (MODEL_KEY, MODEL_RUN_KEY):
            fileio.makedirs(artifact_utils.get_single_uri(output_dict[key]))
        super().Do(input_dict, output_dict, exec_properties)
        put_facts([artifact_utils.get_single_instance(output_dict[key]) for key in (MODEL_KEY, MODEL_RUN_KEY)])
        record_lineage("EmbeddingTrainer", input_dict, output_dict)


def _made(artifact: types.Artifact) -> int:
    """When the artifact was recorded, in milliseconds since 1970; 0 if no metadata says so."""
    return int(artifact.mlmd_artifact.create_time_since_epoch)


def put_facts(outputs: Sequence[types.Artifact]) -> None:
    """Record on the outputs what lineage and report say of a training; the ModelRun is the last of them."""
    facts = _facts(outputs[-1].uri)
    for artifact in outputs:
        for name, value in facts.items():
            artifact.set_string_custom_property(name, json.dumps(value, sort_keys=True))


def _facts(run_folder: str) -> dict[str, Any]:
    """What lineage and report say of the model; nothing where another run_fn wrote no such files."""
    if not fileio.exists(os.path.join(run_folder, "training.json")):
        return {}
    run = RunDescription.load(run_folder)
    history = History.load(os.path.join(run_folder, "history.json"))
    last = next((entry for entry in history.evals if entry["step"] == run.step), {})
    return {
        "step": run.step,
        "seed": run.training.seed,
        "model_module": run.model,
        "vocabularies": dict(run.vocabularies),
        "eval_loss": last.get("loss"),
        "eval_auc": last.get("auc"),
        "seconds": round(history.seconds, 1),
    }

"""Defines the executor of EmbeddingTrainer, which hands artifacts to a run_fn, and records facts on the outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from tfx import types
from tfx.components.trainer import executor as trainer_executor
from tfx.components.trainer.fn_args_utils import FnArgs
from tfx.dsl.io import fileio
from tfx.utils import path_utils

from components import component_spec as keys
from components.base_executor import Artifacts, ComponentExecutor, Execution, Properties
from components.trainer_settings import with_steps
from embedding_core.errors import ConfigError
from embedding_core.rooms import hooks
from embedding_core.schema import Json
from embedding_core.training.finished_run import RunDescription
from embedding_core.training.loop import History

_VERTEX_PREFIX = "ai_platform_"
"""Prefix of the keys of `custom_config` that configure the Vertex AI job; the run_fn does not get them."""


class Executor(ComponentExecutor, trainer_executor.GenericExecutor):
    """TFX's generic trainer executor, with the artifacts and parameters that embedding tables need."""

    COMPONENT = "EmbeddingTrainer"

    def _GetFnArgs(self, inputs: Artifacts, outputs: Artifacts, properties: Properties) -> FnArgs:  # noqa: N802
        """Return the arguments of run_fn; `custom_config` also carries what FnArgs has no field for."""
        arguments = super()._GetFnArgs(inputs, outputs, properties)
        folders = Execution(inputs, outputs, properties).given_uris(
            keys.VOCABULARIES, keys.TABLE_CONFIGS, keys.WARM_START
        )
        parameters = {key: properties.get(key) for key in (keys.MODEL_MODULE, keys.CODE_FINGERPRINT, keys.RESUME_DIR)}
        config = {
            key: value for key, value in (arguments.custom_config or {}).items() if not key.startswith(_VERTEX_PREFIX)
        }
        config = with_steps(config, properties.get(keys.TRAINING_STEPS))
        made = {key: [_made(artifact) for artifact in artifacts] for key, artifacts in sorted(inputs.items())}
        arguments.custom_config = {**config, **folders, **parameters, "inputs_made": made}
        return arguments

    def serves_another(self) -> bool:
        """Serve the process that trains if this one is there for that, by an optional room; return whether it was.

        All pools of a CustomJob start the same command, and TF_CONFIG tells each process its task.
        """
        return any(room.serves_another() for room in hooks("embedding_core", "worker"))

    def execute(self, execution: Execution) -> None:
        """Train, and record facts on the outputs.

        Raises:
          EmbeddingError: the data or the configuration is invalid, or the training fails.
        """
        outputs = [execution.output(key) for key in (keys.MODEL, keys.MODEL_RUN)]
        try:
            trainer_executor.GenericExecutor.Do(self, execution.inputs, execution.outputs, execution.properties)
        except RuntimeError as error:
            if "failed to generate model" not in str(error):  # TFX's own check; `_check_outputs` gives the remedy
                raise
        _check_outputs(execution)
        put_facts(outputs)


def _check_outputs(execution: Execution) -> None:
    """Refuse a run_fn that left no model: each downstream node would fail with another error."""
    model, run = execution.output(keys.MODEL), execution.output(keys.MODEL_RUN)
    files = (path_utils.serving_model_path(model.uri), "saved_model.pb"), (run.uri, "training.json")
    missing = [name for folder, name in files if not fileio.exists(os.path.join(folder, name))]
    if missing:
        raise ConfigError(
            f"`run_fn` {execution.properties.get(keys.RUN_FN)!r} left no {' and no '.join(missing)}: end it with "
            "`TrainerRun(fn_args).write(model, history)`, of `components.trainer.own_run`."
        )


def _made(artifact: types.Artifact) -> int:
    """Return the time at which the artifact was recorded, in milliseconds since 1970; 0 without metadata."""
    return int(artifact.mlmd_artifact.create_time_since_epoch)


def put_facts(outputs: Sequence[types.Artifact]) -> None:
    """Record on the outputs the facts that lineage and report show; the last output must be the ModelRun."""
    facts = _facts(outputs[-1].uri)
    for artifact in outputs:
        for name, value in facts.items():
            artifact.set_string_custom_property(name, json.dumps(value, sort_keys=True))


def _facts(run_folder: str) -> Json:
    """Read the facts from the files of a ModelRun; empty if another run_fn wrote no `training.json`."""
    if not fileio.exists(os.path.join(run_folder, "training.json")):
        return {}
    run = RunDescription.load(run_folder)
    history = History.load(os.path.join(run_folder, "history.json"))
    return {
        "step": run.step,
        "seed": run.training.seed,
        "model_module": run.model,
        "vocabularies": dict(run.vocabularies),
        "eval_loss": history.final.get("loss"),
        "eval_auc": history.final.get("auc"),
        "seconds": round(history.seconds, 1),
    }

"""Defines the executor of Evaluator, which scores the eval split, and writes metrics by slice as TFMA does."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf
import tensorflow_model_analysis as tfma
from google.protobuf import json_format
from tensorflow_model_analysis.proto.config_pb2 import EvalConfig, ModelSpec
from tfx.components.evaluator import constants as marks
from tfx.dsl.components.base import base_executor
from tfx.dsl.io import fileio
from tfx.utils import path_utils

from components import component_spec as keys
from components import progress
from components.artifact_files import read_embedding_config
from components.base_executor import ComponentExecutor, Execution, files_below
from components.evaluator.metric_values import MetricValues, RankedData, add_rankings
from components.evaluator.model_scores import Scorer, scored_batches
from components.evaluator.tfma_parts import (
    SlicedMetrics,
    SliceGroups,
    ValidationResult,
    eval_run_json,
    metrics_message,
    validated,
)
from embedding_core.errors import ConfigError
from embedding_core.evaluation.queries import ReadTokens, user_reader
from embedding_core.quality_rules import RankingSettings

# Writes an evaluation to the same files that TFMA writes and loads.

_SHARD = "-00000-of-00001.tfrecord"


def write_results(
    folder: str,
    config: EvalConfig,
    metrics: Sequence[SlicedMetrics],
    *,
    data: str,
    models: Mapping[str, str],
) -> ValidationResult:
    """Write metrics, validation result and configuration.

    Args:
      folder: folder of the ModelEvaluation; it exists.
      config: the configuration, with its defaults.
      metrics: metrics of each slice.
      data: folder of the rows, shown by TFMA.
      models: folder of each SavedModel by its name, shown by TFMA.

    Returns:
      Which thresholds were missed.
    """
    result = validated(metrics, config)
    _write_records(posixpath.join(folder, tfma.METRICS_KEY + _SHARD), map(metrics_message, metrics))
    for empty in (tfma.PLOTS_KEY, tfma.ATTRIBUTIONS_KEY):
        _write_records(posixpath.join(folder, empty + _SHARD), [])
    _write_records(posixpath.join(folder, tfma.VALIDATIONS_KEY + ".tfrecord"), [result.SerializeToString()])
    with fileio.open(posixpath.join(folder, "eval_config.json"), "w") as file:
        file.write(eval_run_json(config, data, models))
    return result


def _write_records(path: str, records: Iterable[bytes]) -> None:
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)


class Executor(ComponentExecutor, base_executor.BaseExecutor):
    """Evaluates the eval split in one pass; ranking metrics take further passes."""

    COMPONENT = "Evaluator"

    def execute(self, execution: Execution) -> None:
        """Write metrics and validation result, and bless the model if it reaches every threshold.

        Raises:
          ConfigError: `eval_config` asks for a metric that only TFMA computes, or that needs an input that is missing.
          DataError: the eval split is empty or damaged, a prediction is not finite, or the data cannot be ranked.
        """
        given = json_format.Parse(execution.properties[keys.EVAL_CONFIG], EvalConfig())
        has_baseline = bool(execution.inputs.get(keys.BASELINE_MODEL))
        config = tfma.utils.update_eval_config_with_defaults(given, has_baseline=has_baseline, rubber_stamp=True)
        tfma.utils.verify_eval_config(config)
        folders = _model_folders(execution, config)
        values = MetricValues(config)
        groups = SliceGroups(config)
        files = files_below(execution.split_folders(keys.EXAMPLES, "eval"))
        first = next((name for spec in config.metrics_specs for name in spec.output_names), "")
        scorers = {name: Scorer(*folder, first) for name, folder in folders.items()}
        settings = RankingSettings.from_mapping(execution.json(keys.RANKING) or {})
        execution.begin_rows(self.COMPONENT, "eval")
        for batch in scored_batches(files, scorers, _users(values, settings, files)):
            values.add(batch, *groups.of_rows(batch.serialized))
            progress.advance(self.COMPONENT, len(batch.serialized))
        if values.rankings:
            progress.advance(self.COMPONENT, 0, "ranking all candidates")
            data = _ranked_data(execution, settings, files)
            names = sorted(scorers, key=lambda name: folders[name][1].is_baseline)  # the new model first
            add_rankings(values.rankings, scorers, names, data, groups)
        evaluation = execution.output(keys.EVALUATION)
        result = write_results(
            evaluation.uri,
            config,
            [(key, values.of_slice(number)) for number, key in enumerate(groups.keys)],
            data=os.path.dirname(files[0]),
            models={name: folder for name, (folder, _) in folders.items()},
        )
        _bless(execution, is_blessed=bool(result.validation_ok))


def _users(values: MetricValues, settings: RankingSettings, files: Sequence[str]) -> ReadTokens | None:
    if not values.needs_users:
        return None
    if settings.user is None:
        raise ConfigError("`eval_config` has GroupAUC, but `ranking` names no user: set `evaluation.user`.")
    return user_reader(settings.user, files)


def _ranked_data(execution: Execution, settings: RankingSettings, files: Sequence[str]) -> RankedData:
    for key in (keys.TABLE_CONFIGS, keys.VOCABULARIES):
        if not execution.inputs.get(key):
            raise ConfigError(f"`{key}` is not given, but `eval_config` has metrics of rankings: they need it.")
    return RankedData(
        settings=settings,
        config=read_embedding_config(execution.uri(keys.TABLE_CONFIGS)),
        vocabularies=execution.uri(keys.VOCABULARIES),
        train_files=files_below(execution.split_folders(keys.EXAMPLES, "train")),
        eval_files=files,
    )


def _model_folders(execution: Execution, config: EvalConfig) -> Mapping[str, tuple[str, ModelSpec]]:
    """Return the folder of the SavedModel and the specification of each model, by name."""
    folders = {}
    for spec in config.model_specs:
        (artifact,) = execution.inputs[keys.BASELINE_MODEL if spec.is_baseline else keys.MODEL]
        folder = path_utils.serving_model_path(artifact.uri, path_utils.is_old_model_artifact(artifact))
        folders[spec.name] = folder, spec
    return folders


def _bless(execution: Execution, *, is_blessed: bool) -> None:
    """Mark the blessing as TFX's Evaluator does."""
    blessing = execution.output(keys.BLESSING)
    for key, uri_property, id_property in (
        (keys.MODEL, marks.ARTIFACT_PROPERTY_CURRENT_MODEL_URI_KEY, marks.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY),
        (
            keys.BASELINE_MODEL,
            marks.ARTIFACT_PROPERTY_BASELINE_MODEL_URI_KEY,
            marks.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY,
        ),
    ):
        for model in execution.inputs.get(key) or ():
            blessing.set_string_custom_property(uri_property, model.uri)
            blessing.set_int_custom_property(id_property, model.id)
    name, value = marks.NOT_BLESSED_FILE_NAME, marks.NOT_BLESSED_VALUE
    if is_blessed:
        name, value = marks.BLESSED_FILE_NAME, marks.BLESSED_VALUE
    with fileio.open(os.path.join(blessing.uri, name), "w") as file:
        file.write("")
    blessing.set_int_custom_property(marks.ARTIFACT_PROPERTY_BLESSED_KEY, value)

"""Writes an evaluation to the same files that TFMA writes and loads."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto.config_pb2 import EvalConfig
from tfx.dsl.io import fileio

from components.evaluator.tfma_parts import (
    SlicedMetrics,
    ValidationResult,
    eval_run_json,
    metrics_message,
    validated,
)

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

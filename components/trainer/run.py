"""Defines the run_fn of EmbeddingTrainer: it trains a model from artifacts and exports it."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Mapping, Sequence

import tensorflow as tf
from tfx.components.trainer.fn_args_utils import FnArgs
from tfx.dsl.io import fileio

from components import progress
from components.artifact_files import read_embedding_config
from components.run_inputs import NumberSources
from components.trainer_settings import RunSettings, read_settings
from components.transform_graph import range_problems, read_ranges
from embedding_core.checkpoint import load_checkpoint_into
from embedding_core.checkpoint.dense import DENSE
from embedding_core.checkpoint.retrieve import Blocks
from embedding_core.config import EmbeddingConfig
from embedding_core.rooms import hooks
from embedding_core.schema import Json
from embedding_core.serving import export_model
from embedding_core.storage import file_digest, folder_digests, is_remote
from embedding_core.training import TrainingJob, TrainingResult, fingerprint, train
from embedding_core.training.encoded_rows import rows_key
from embedding_core.training.finished_run import RunDescription
from embedding_core.training_config import DenseStart
from embedding_core.vocabulary import Vocabulary, load_vocabularies

_log = logging.getLogger(__name__)


def run_fn(fn_args: FnArgs) -> None:
    """Train with the settings of `fn_args.custom_config`, and write Model and ModelRun.

    Args:
      fn_args: as the executor of EmbeddingTrainer makes them.

    Raises:
      EmbeddingError: the data or the configuration is invalid, or the training fails.
    """
    opened = open_training(fn_args)
    job = opened.job
    resume = _resume_folder(fn_args, opened)
    rows = _rows_folder(fn_args, opened.settings, job)
    result = train(
        job, fn_args.model_run_dir, resume_folder=resume, rows=rows, progress=_Progress(), encoding=_show_encoding
    )
    write_outputs(fn_args, opened, result)
    if resume is not None:
        fileio.rmtree(resume)


@dataclasses.dataclass(frozen=True)
class OpenTraining:
    """The artifacts and settings of a training."""

    settings: RunSettings
    config: EmbeddingConfig
    vocabularies: Mapping[str, Vocabulary]
    sources: NumberSources
    job: TrainingJob


def open_training(fn_args: FnArgs) -> OpenTraining:
    """Read the artifacts and settings that `fn_args` names.

    Raises:
      EmbeddingError: an artifact or a setting is missing or invalid.
    """
    settings = read_settings(fn_args.custom_config, RunSettings)
    config = read_embedding_config(settings.table_configs)
    vocabularies = load_vocabularies(settings.vocabularies)
    sources = settings.sources(config, fn_args.transform_graph_path, fn_args.schema_path)
    job = _job(fn_args, settings, vocabularies, sources)
    return OpenTraining(settings, config, vocabularies, sources, job)


def write_outputs(fn_args: FnArgs, opened: OpenTraining, result: TrainingResult) -> None:
    """Describe the run in the ModelRun, and export the model.

    Raises:
      EmbeddingError: the model cannot be exported.
    """
    job = opened.job
    description = RunDescription(
        model=job.model,
        arguments=job.arguments,
        config=opened.config,
        training=job.training,
        dense=job.inputs.dense,
        tasks=job.inputs.tasks,
        weight=opened.settings.weight_key,
        step=result.step,
        checkpoint=os.path.basename(result.checkpoint),
        vocabularies={name: vocabulary.digest for name, vocabulary in opened.vocabularies.items()},
        stacked_on=result.stacked_on,
    )
    description.save(fn_args.model_run_dir)
    export_model(
        fn_args.serving_model_dir,
        config=opened.config,
        tables=result.tables,
        vocabularies=job.inputs.vocabularies,
        model=result.model,
        dense=opened.sources.of_features(),
        labels=opened.sources.of_labels(),
        tasks=job.inputs.tasks,
    )


class _Progress:
    """Reports steps; the steps before the first call were trained by the run that is resumed."""

    def __init__(self) -> None:
        self._start: int | None = None

    def __call__(self, done: int, total: int, detail: str) -> None:
        if self._start is None:
            self._start = done
        progress.report("EmbeddingTrainer", done, total, unit="steps", detail=detail, start=self._start)


def _show_encoding(split: str, rows: int, done: int) -> None:
    progress.report(f"encode {split}", done, rows)


def _job(
    fn_args: FnArgs,
    settings: RunSettings,
    vocabularies: Mapping[str, Vocabulary],
    sources: NumberSources,
) -> TrainingJob:
    def warm_start(variables: Mapping[str, Blocks]) -> None:
        digests = {name: vocabulary.digest for name, vocabulary in vocabularies.items()}
        load_checkpoint_into(str(settings.warm_start), variables, sources.config, vocabulary_digests=digests)

    return TrainingJob(
        inputs=sources.inputs(settings.vocabularies, vocabularies),
        training=settings.training_config,
        model=settings.model_module,
        arguments=dict(settings.arguments),
        train_files=_files(fn_args.train_files),
        eval_files=_files(fn_args.eval_files),
        counts={name: vocabulary.counts for name, vocabulary in vocabularies.items()},
        warm_start=warm_start if settings.warm_start else None,
        dense_start=_dense_start(settings),
        ranges=_ranges(fn_args, settings),
        engine_arguments={
            name: value
            for room in hooks("components", "table_limits")
            for name, value in room.engine_arguments(settings.table_configs, settings.training_config).items()
        },
    )


def _dense_start(settings: RunSettings) -> DenseStart | None:
    if settings.warm_start is None:
        return None
    return DenseStart(folder=os.path.join(settings.warm_start, DENSE), **settings.dense_start)


def _ranges(fn_args: FnArgs, settings: RunSettings) -> dict[str, Json]:
    """Return the ranges that scale dense features; warn about constant features and implausible values."""
    if not fn_args.transform_graph_path:
        return {}
    measured = read_ranges(fn_args.transform_graph_path, settings.dense)
    ranges = {name: {**settings.scaling.get(name, {}), **span} for name, span in measured.items()}
    for name, problem in range_problems(ranges).items():
        _log.warning("dense feature %r: %s", name, problem)
    return ranges


def _files(patterns: Sequence[str]) -> list[str]:
    return sorted(path for pattern in patterns for path in fileio.glob(pattern))


def _resume_folder(fn_args: FnArgs, opened: OpenTraining) -> str | None:
    """Return the folder of this run; any change of data, code, vocabulary or setting gives another folder."""
    settings, job = opened.settings, opened.job
    if settings.resume_dir is None:
        return None
    name = fingerprint(
        job.training.to_mapping(),
        job.model,
        job.arguments,
        json.loads(opened.config.to_json()),
        {name: vocabulary.digest for name, vocabulary in opened.vocabularies.items()},
        [job.inputs.dense, [task.to_mapping() for task in job.inputs.tasks], job.inputs.weight],
        [(path, tf.io.gfile.stat(path).length) for path in (*job.train_files, *job.eval_files)],
        [fn_args.transform_graph_path, settings.warm_start, dict(settings.dense_start), settings.code_fingerprint],
        settings.inputs_made,
    )
    return os.path.join(settings.resume_dir, name)


def _rows_folder(fn_args: FnArgs, settings: RunSettings, job: TrainingJob) -> str | None:
    """Return the folder below `resume_dir` that keeps encoded rows; None without `resume_dir` or in an object store."""
    if settings.resume_dir is None or is_remote(settings.resume_dir):
        return None
    graph, schema = fn_args.transform_graph_path, fn_args.schema_path
    made_by = folder_digests(graph) if graph else {"schema": file_digest(schema) if schema else None}
    stopping = job.training.early_stopping
    held_back = None if stopping is None else stopping.validation_fraction
    files = [*job.train_files, *job.eval_files]
    key = rows_key(job.inputs, files, made_by, held_back, settings.code_fingerprint)
    return os.path.join(settings.resume_dir, "rows", key)

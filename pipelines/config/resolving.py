"""Writes out the defaults that depend on other keys or on the model's source, so that no null hides a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.example_gen.formats import format_of
from pipelines.config.data import Data
from pipelines.config.feature_sections import Categorical, Dense
from pipelines.config.files import data_files
from pipelines.config.metrics import Evaluation
from pipelines.config.model import Model
from pipelines.config.pipeline_config import PipelineConfig
from pipelines.config.user_modules import GIVEN_BY_TRAINER, keyword_arguments, parse_module


def resolved(config: PipelineConfig) -> PipelineConfig:
    """Return the checked configuration with every default that has a value written out; loading it changes nothing.

    A null that is left means a rule that needs the data ("once per epoch", "1/sqrt(dim)") or "none".
    """
    features = config.features.replace(
        categorical=tuple(map(_categorical, config.features.categorical)),
        dense=tuple(map(_dense, config.features.dense)),
    )
    return config.replace(
        data=_with_format(config.data),
        features=features,
        model=_model(config.model, config.python_path),
        evaluation=_evaluation(config),
        push=config.push.replace(destination=config.push_destination),
        metadata=config.metadata_path,
    )


def _evaluation(config: PipelineConfig) -> Evaluation:
    """Write out the default metrics of a single label; with several labels, each label has its own defaults."""
    if len(config.tasks) > 1 or config.evaluation.metrics is not None:
        return config.evaluation
    return config.evaluation.replace(metrics=config.evaluation.metrics_of(config.tasks[0]))


def _categorical(feature: Categorical) -> Categorical:
    return feature.replace(column=feature.source, vocabulary=feature.vocabulary_name, table=feature.table_name)


def _dense(feature: Dense) -> Dense:
    return feature.replace(column=feature.source)


def _with_format(data: Data) -> Data:
    return data if data.format else data.replace(format=format_of(data_files(data)[0]))


def _model(model: Model, python_path: str) -> Model:
    return model.replace(arguments={**_defaults(model, python_path), **model.build_arguments})


def _defaults(model: Model, python_path: str) -> Mapping[str, Any]:
    """Return the defaults of `build` that its source gives as plain values; the source is parsed, not imported."""
    known = keyword_arguments(parse_module(model.module, python_path), "build", given=3) or {}
    for name in GIVEN_BY_TRAINER:
        known.pop(name, None)
    return {name: argument.default for name, argument in known.items() if argument.has_plain_default}

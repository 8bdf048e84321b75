"""Reads `custom_config` of EmbeddingTrainer, which TableConfigGen gets too: what is trained and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from components.run_inputs import NumberSources
from components.transform_graph import read_classes
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.schema import Json
from embedding_core.tasks import Task
from embedding_core.training import TrainingConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """`custom_config` of EmbeddingTrainer, and the folder of the vocabularies.

    Attributes:
      training: JSON object, a `TrainingConfig`.
      arguments: arguments of the model's `build`.
      dense: names of the dense features.
      tasks: JSON objects, each a `Task` of the model; the default is one binary label, "label".
      weight_key: name of the sample weight, or None.
      vocabularies: folder of the artifact.
      dense_start: choices of `embedding_core.training_config.DenseStart`: `dense`, `dense_optimizer`, `ranges`.
      scaling: `column` and `log1p` of the dense features that `pipelines.preprocessing` scales, by name.
    """

    training: Json
    arguments: Json = dataclasses.field(default_factory=dict)
    dense: Sequence[str] = ()
    tasks: Sequence[Json] = ({},)
    weight_key: str | None = None
    vocabularies: str
    dense_start: Json = dataclasses.field(default_factory=dict)
    scaling: Mapping[str, Json] = dataclasses.field(default_factory=dict)

    @property
    def training_config(self) -> TrainingConfig:
        """Settings of the training; the default of `candidate_features` is that of the model's arguments."""
        config = TrainingConfig.from_mapping(self.training)
        candidate = tuple(self.arguments.get("candidate_features", ()))
        for key in ("negatives", "softmax") if candidate else ():
            section = getattr(config, key)
            if section is not None and not section.candidate_features:
                config = config.replace(**{key: section.replace(candidate_features=candidate)})
        return config

    def sources(self, config: EmbeddingConfig, transform_graph: str | None, schema_file: str | None) -> NumberSources:
        """Return the sources of dense features, labels and weight; the tasks have the classes that Transform found.

        Args:
          config: tables and features.
          transform_graph: folder of the TransformGraph artifact, or None.
          schema_file: path of a schema, or None.
        """
        return NumberSources(
            config=config,
            dense=tuple(self.dense),
            tasks=tuple(_with_classes(Task.from_mapping(task), transform_graph) for task in self.tasks),
            weight=self.weight_key,
            transform_graph=transform_graph,
            schema_file=schema_file,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """What the executor of EmbeddingTrainer adds to the settings.

    Attributes:
      model_module: dotted module with `build`.
      table_configs: folder of the artifact.
      warm_start: folder of an embedding checkpoint, or None.
      code_fingerprint: digest of the code that runs, or None.
      resume_dir: folder that keeps checkpoints while training, or None.
      inputs_made: when each input was recorded in ML Metadata, by key. Paths alone do not identify inputs, because a
        new store reuses the paths of a lost store.
    """

    model_module: str
    table_configs: str
    warm_start: str | None = None
    code_fingerprint: str | None = None
    resume_dir: str | None = None
    inputs_made: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)


_SomeSettings = TypeVar("_SomeSettings", bound=Settings)


def read_settings(custom_config: Json, kind: type[_SomeSettings]) -> _SomeSettings:
    """Read the settings of a kind.

    Raises:
      ConfigError: an unknown key, or a key is missing.
    """
    try:
        return kind(**custom_config)
    except TypeError as error:
        raise ConfigError(f"`custom_config` of EmbeddingTrainer is {custom_config!r}: {error}.") from error


def with_steps(custom_config: Json, steps: float | None) -> Json:
    """Replace the steps or epochs of `custom_config` by `steps`; return it unchanged if `steps` is None or 0."""
    if int(steps or 0) <= 0:
        return custom_config
    return {
        **custom_config,
        "training": {**custom_config.get("training", {}), "steps": int(steps or 0), "epochs": None},
    }


def _with_classes(task: Task, transform_graph: str | None) -> Task:
    if not task.is_multiclass or task.classes:
        return task
    if not transform_graph:
        raise ConfigError(
            f"`kind` of task {task.name!r} is 'multiclass', and `transform_graph` is missing, which holds its "
            "classes: give the channel of Transform."
        )
    return task.replace(classes=read_classes(transform_graph, str(task.key)))

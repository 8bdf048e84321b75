"""Rebuilds the inputs of a finished run, and checks that its artifacts belong together."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping, Sequence

from components.artifact_files import read_embedding_config
from components.transform_graph import number_columns, open_transform_graph
from embedding_core.columns import DenseInputs
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import CheckpointError, ConfigError, VocabularyError
from embedding_core.storage import file_digest, folder_digests, json_digest
from embedding_core.tasks import Task
from embedding_core.training import Inputs
from embedding_core.training.finished_run import RunDescription
from embedding_core.vocabulary import load_vocabularies


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberSources:
    """Sources of the numbers of a run: outputs of Transform, or raw columns without a transform graph.

    Attributes:
      config: the tables and features.
      dense: names of the dense features.
      tasks: what the model is trained for.
      weight: name of the sample weight, or None.
      transform_graph: folder of a TransformGraph artifact, or None.
      schema_file: path of a schema, or None.
    """

    config: EmbeddingConfig
    dense: tuple[str, ...]
    tasks: tuple[Task, ...]
    weight: str | None
    transform_graph: str | None
    schema_file: str | None

    def of_features(self) -> DenseInputs | None:
        """Return what serving needs: dense features and transformed columns; None if the model has neither."""
        outputs = (*self.dense, *self._transformed())
        return self._of(outputs, self.dense) if outputs else None

    def of_labels(self) -> DenseInputs | None:
        """Return labels and weight; None if the run has neither."""
        labels = self._labels()
        return self._of(labels, labels) if labels else None

    def inputs(self, vocabularies: str, names: Iterable[str]) -> Inputs:
        """Return the inputs of training: features, dense inputs, labels and weight.

        Args:
          vocabularies: folder of the Vocabularies artifact.
          names: names of the vocabularies.

        Raises:
          ConfigError: numbers are needed, and there is neither transform graph nor schema.
        """
        graph, schema = self.transform_graph, self.schema_file
        read = {
            "vocabularies": folder_digests(vocabularies),
            "transform": folder_digests(graph) if graph else None,
            "schema": file_digest(schema) if schema and not graph else None,
        }
        return _inputs(self, vocabularies, tuple(names), json_digest(read))

    def _new_inputs(self, vocabularies: str, names: Iterable[str]) -> Inputs:
        source = self._of((*self.dense, *self._transformed(), *self._labels()), self.dense)
        return Inputs(
            config=self.config,
            vocabularies={name: os.path.join(vocabularies, f"{name}.txt") for name in names},
            dense=self.dense,
            tasks=self.tasks,
            weight=self.weight,
            raw_spec=source.spec,
            transform=source.transform,
        )

    def _labels(self) -> tuple[str, ...]:
        return tuple(filter(None, (*(task.key for task in self.tasks), self.weight)))

    def _transformed(self) -> list[str]:
        columns = (feature.column for feature in self.config.features)
        return [column.name for column in columns if column is not None and column.after_transform]

    def _of(self, outputs: Sequence[str], names: Sequence[str]) -> DenseInputs:
        if not outputs:
            return DenseInputs(spec={})
        wanted = tuple(dict.fromkeys(outputs))
        if self.transform_graph:
            return open_transform_graph(self.transform_graph, wanted, names)
        if not self.schema_file:
            raise ConfigError(
                f"columns {list(wanted)} are to be read, but there is neither a `transform_graph` nor a `schema`: give "
                "the one that EmbeddingTrainer had."
            )
        return DenseInputs(names=tuple(names), spec=number_columns(self.schema_file, wanted))


@functools.lru_cache(maxsize=1)  # QualityGate and the report parse rows by one graph, whose trace takes seconds
def _inputs(sources: NumberSources, vocabularies: str, names: tuple[str, ...], digest: str) -> Inputs:
    """Return the inputs; `digest` is that of all files that they read."""
    return sources._new_inputs(vocabularies, names)


def sources_of_run(
    run: RunDescription, *, transform_graph: str | None = None, schema: str | None = None
) -> NumberSources:
    """Make the sources of a finished run.

    Args:
      run: `training.json` of the ModelRun.
      transform_graph: folder of the TransformGraph artifact, if the run had one.
      schema: folder of the Schema artifact; needed without a transform graph.
    """
    return NumberSources(
        config=run.config,
        dense=run.dense,
        tasks=run.tasks,
        weight=run.weight,
        transform_graph=transform_graph,
        schema_file=None if schema is None else os.path.join(schema, "schema.pbtxt"),
    )


def same_run_digests(run: RunDescription, model_run: str, vocabularies: str, table_configs: str) -> dict[str, str]:
    """Check that a finished run was trained with these tables and vocabularies.

    Args:
      run: `training.json` of the ModelRun.
      model_run: folder of the ModelRun, for messages.
      vocabularies: folder of the Vocabularies artifact, every file of which is verified.
      table_configs: folder of the TableConfigs artifact.

    Returns:
      The sha256 of each vocabulary that the tables use, by name.

    Raises:
      CheckpointError: the run was trained with other tables.
      VocabularyError: a vocabulary is damaged, or is not the one that the tables' rows belong to.
    """
    if read_embedding_config(table_configs) != run.config:
        raise CheckpointError(
            f"the model run {model_run!r} was trained with other tables than those of {table_configs!r}: take both "
            "from the same run."
        )
    given = load_vocabularies(vocabularies)
    used = {table.vocabulary: table.name for table in run.config.tables if table.vocabulary is not None}
    digests = {name: given[name].digest for name in sorted(used) if name in given}
    _check_digests(used, digests, run.vocabularies)
    return digests


def _check_digests(tables: Mapping[str, str], given: Mapping[str, str], trained: Mapping[str, str]) -> None:
    for name, table in tables.items():
        if given.get(name) != trained.get(name):
            raise VocabularyError(
                f"vocabulary {name!r} has digest {given.get(name)!r}, the rows of table {table!r} belong to "
                f"{trained.get(name)!r}: take vocabularies and model from the same run."
            )

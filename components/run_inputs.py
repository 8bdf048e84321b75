"""How a finished run read its rows, rebuilt from its artifacts."""

from __future__ import annotations

import os

from components.transform_graph import number_columns, open_transform_graph
from embedding_core.errors import ConfigError
from embedding_core.serving import DenseInputs
from embedding_core.training import Inputs
from embedding_core.training.runs import RunDescription

__all__ = ["inputs_of_run"]


def inputs_of_run(
    run: RunDescription, vocabularies: str, *, transform_graph: str | None = None, schema: str | None = None
) -> Inputs:
    """How a finished run read its rows: features, dense inputs, label and weight.

    Args:
      run: `training.json` of the ModelRun.
      vocabularies: folder of the Vocabularies artifact.
      transform_graph: folder of the TransformGraph artifact, where the run had one.
      schema: folder of the Schema artifact; needed where there is no transform graph.

    Raises:
      ConfigError: numbers are needed, and there is neither of the two.
    """
    columns = [feature.column for feature in run.config.features if feature.column and feature.column.after_transform]
    wanted = (*run.dense, *(column.name for column in columns), *filter(None, (run.label, run.weight)))
    source = _source(run, wanted, transform_graph, schema)
    return Inputs(
        config=run.config,
        vocabularies={name: os.path.join(vocabularies, f"{name}.txt") for name in run.vocabularies},
        dense=run.dense,
        label=run.label,
        weight=run.weight,
        raw_spec=source.spec,
        transform=source.transform,
    )


def _source(
    run: RunDescription, wanted: tuple[str, ...], transform_graph: str | None, schema: str | None
) -> DenseInputs:
    if not wanted:
        return DenseInputs(spec={})
    if transform_graph is not None:
        return open_transform_graph(transform_graph, wanted, run.dense)
    if schema is None:
        raise ConfigError(f"the model reads {list(wanted)}: give the `transform_graph` or the `schema` of its run.")
    return DenseInputs(names=run.dense, spec=number_columns(os.path.join(schema, "schema.pbtxt"), wanted))

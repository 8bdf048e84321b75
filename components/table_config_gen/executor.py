"""Defines the executor of TableConfigGen, which plans tables and the limits of SparseCores."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.dsl.io import fileio

from components import component_spec as keys
from components.artifact_files import (
    EMBEDDING_CONFIG_FILE,
    SPARSE_CORE_LIMITS_FILE,
    read_sparse_core_limits,
    read_vocabularies,
)
from components.base_executor import ComponentExecutor, Execution, files_below
from components.trainer_settings import Settings, read_settings, with_steps
from embedding_core.checkpoint import read_manifest
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.planning.planner import ALL_TABLES, plan_from_vocabularies, plan_report
from embedding_core.planning.table_overrides import TableSettings
from embedding_core.planning.topology import GIB, Topology, named_topology
from embedding_core.schema import ByName, Json, read
from embedding_core.storage import sealed_json
from embedding_core.training import TrainingJob
from embedding_core.training.sparse_core_limits import sparse_core_limits
from embedding_core.vocabulary import Vocabulary

# Computes the limits of SparseCores for the training that comes after TableConfigGen.


def limits_of_training(
    execution: Execution, config: EmbeddingConfig, vocabularies: Mapping[str, Vocabulary], topology: Topology
) -> Json | None:
    """Compute the limits, with the rows and settings that EmbeddingTrainer gets.

    Args:
      execution: the execution of TableConfigGen.
      config: the tables that it planned.
      vocabularies: the vocabularies, by name.
      topology: the slice.

    Returns:
      What `sparse_core_limits` returns; None without a `custom_config`, or if the slice has no SparseCores.

    Raises:
      ConfigError: a setting is invalid, or the batch cannot be divided among the SparseCores.
      DataError: the data breaks a rule.
    """
    custom = execution.json(keys.CUSTOM_CONFIG)
    if custom is None or not topology.sparse_cores:
        return None
    given = execution.given_uris(keys.VOCABULARIES, keys.TRANSFORM_GRAPH, keys.SCHEMA, keys.BASE_TABLE_CONFIGS)
    graph, schema = given.get(keys.TRANSFORM_GRAPH), given.get(keys.SCHEMA)
    custom = with_steps(custom, execution.properties.get(keys.TRAINING_STEPS))
    settings = read_settings({**custom, "vocabularies": given[keys.VOCABULARIES]}, Settings)
    tasks = settings.task_list(graph)
    sources = settings.sources(config, tasks, graph, None if schema is None else os.path.join(schema, "schema.pbtxt"))
    job = TrainingJob(
        inputs=settings.inputs(config, vocabularies, sources, tasks),
        training=settings.training_config,
        model="",
        train_files=files_below(execution.split_folders(keys.EXAMPLES, "train")),
        eval_files=files_below(execution.split_folders(keys.EXAMPLES, "eval")),
        counts={name: vocabulary.counts for name, vocabulary in vocabularies.items()},
    )
    base = given.get(keys.BASE_TABLE_CONFIGS)
    previous = None if base is None else read_sparse_core_limits(base)
    return sparse_core_limits(job, topology, previous=previous["stacks"] if previous else None)


# The executor of TableConfigGen: glue between artifacts and `embedding_core.planning.planner`.

_NONE = TableSettings()
_PLAN_FILE = "plan.json"
_DIGESTS_FILE = "vocabularies.json"


class Executor(ComponentExecutor, base_executor.BaseExecutor):
    """Plans tables from vocabularies."""

    COMPONENT = "TableConfigGen"

    def execute(self, execution: Execution) -> None:
        """Write the tables, their memory plan, the digests of their vocabularies, and the limits of SparseCores.

        Raises:
          ConfigError: an override breaks its rule, or the tables or the batch do not fit the topology.
          DataError: rows are read for the limits of SparseCores, and break a rule.
          VocabularyError: a vocabulary is damaged.
          CheckpointError: the previous run's checkpoint has no manifest, or a damaged one.
        """
        vocabularies = read_vocabularies(execution.uri(keys.VOCABULARIES))
        features = execution.json(keys.FEATURES)
        overrides: Mapping[str, TableSettings]
        overrides = read(ByName[TableSettings], execution.json(keys.TABLES) or {}, "tables")
        for folder in execution.given_uris(keys.EARLIER_CHECKPOINT).values():
            overrides = _with_dims_of(read_manifest(folder).config, features, overrides)
        config = plan_from_vocabularies(features, vocabularies, overrides=overrides)
        name = execution.properties.get(keys.TOPOLOGY)
        topology = named_topology(name) if name else None
        report = plan_report(config, topology)
        _check_fits(report)
        used = {table.vocabulary: vocabularies[table.vocabulary].digest for table in config.tables if table.vocabulary}
        limits = None if topology is None else limits_of_training(execution, config, vocabularies, topology)
        _write(execution.output(keys.TABLE_CONFIGS), config, report, used, limits)


def _with_dims_of(
    earlier: EmbeddingConfig, features: list[Json], overrides: Mapping[str, TableSettings]
) -> Mapping[str, TableSettings]:
    """Return the overrides; a table without a given dim gets the one that it had in the previous run, if any."""
    used = {feature.get("table") or feature.get("vocabulary") for feature in features}
    dims = {table.name: table.dim for table in earlier.tables if table.name in used}
    if overrides.get(ALL_TABLES, _NONE).dim is not None:
        return overrides
    given = {name: overrides.get(name, _NONE) for name in dims}
    return {**overrides, **{name: table.replace(dim=table.dim or dims[name]) for name, table in given.items()}}


def _check_fits(report: Json) -> None:
    plan = report["topology"]
    if plan is None or not plan["over_budget"]:
        return
    core = {name: table["fullest_core_bytes"] / GIB for name, table in plan["tables"].items()}
    tables = ", ".join(f"{name!r} ({core[name]:.1f} GiB)" for name in plan["over_budget"])
    raise ConfigError(
        f"the tables and their slots need {plan['fullest_core_bytes'] / GIB:.1f} GiB on the fullest core of `topology` "
        f"{plan['name']!r}, which has {plan['bytes_per_core'] / GIB:.0f}: without {tables} the rest would fit; give "
        "those a smaller `dim` or a larger `min_count`, or take a larger slice."
    )


def _write(
    artifact: types.Artifact, config: EmbeddingConfig, report: Json, digests: dict[str, str], limits: Json | None
) -> None:
    texts = {
        EMBEDDING_CONFIG_FILE: config.to_sealed_json(),
        _PLAN_FILE: (json.dumps(report, indent=2) + "\n").encode(),
        _DIGESTS_FILE: (json.dumps(digests, indent=2, sort_keys=True) + "\n").encode(),
    }
    if limits is not None:
        texts[SPARSE_CORE_LIMITS_FILE] = sealed_json(limits)
    for name, text in texts.items():
        with fileio.open(os.path.join(artifact.uri, name), "wb") as file:
            file.write(text)
    total = report["total"]
    artifact.put_facts(
        tables=len(config.tables),
        features=len(config.features),
        rows=total["rows"],
        bytes=total["table_bytes"] + total["slot_bytes"],
        topology=report["topology"]["name"] if report["topology"] else None,
        vocabularies=digests,
    )
    if limits is not None:
        artifact.put_facts(sparse_cores=_summary(limits))


def _summary(limits: Json) -> Json:
    """Return what the lineage shows: the method, and the limits and drift of each stack."""
    stacks = {
        stack["stack"]: [stack["max_ids_per_partition"], stack["max_unique_ids_per_partition"]]
        for stack in limits["stacks"]
    }
    return {key: limits[key] for key in ("method", "batches", "batches_drawn", "drift")} | {"limits": stacks}

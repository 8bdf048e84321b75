"""Defines the executor of TableConfigGen, which plans tables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.dsl.io import fileio

from components import component_spec as keys
from components.artifact_files import EMBEDDING_CONFIG_FILE
from components.base_executor import ComponentExecutor, Execution
from embedding_core.checkpoint import read_manifest
from embedding_core.config import EmbeddingConfig, TableSettings
from embedding_core.errors import ConfigError
from embedding_core.planning.planner import ALL_TABLES, plan_from_vocabularies, plan_report
from embedding_core.planning.topology import GIB, named_topology
from embedding_core.rooms import hooks
from embedding_core.schema import ByName, Json, read
from embedding_core.vocabulary import load_vocabularies

_NONE = TableSettings()
_PLAN_FILE = "plan.json"
_DIGESTS_FILE = "vocabularies.json"


class Executor(ComponentExecutor, base_executor.BaseExecutor):
    """Plans tables from vocabularies."""

    COMPONENT = "TableConfigGen"

    def execute(self, execution: Execution) -> None:
        """Write the tables, their memory plan, the digests of their vocabularies, and what optional rooms compute.

        Raises:
          ConfigError: an override breaks its rule, or the tables or the batch do not fit the topology.
          DataError: a room reads the training's rows, and they break a rule.
          VocabularyError: a vocabulary is damaged.
          CheckpointError: the previous run's checkpoint has no manifest, or a damaged one.
        """
        vocabularies = load_vocabularies(execution.uri(keys.VOCABULARIES))
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
        artifact = execution.output(keys.TABLE_CONFIGS)
        _write(artifact, config, report, used)
        for room in hooks("components", "table_limits") if topology is not None else ():
            files, facts = room.table_limits(execution, config, vocabularies, topology)
            _write_files(artifact, files)
            artifact.put_facts(**facts)


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


def _write_files(artifact: types.Artifact, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        with fileio.open(os.path.join(artifact.uri, name), "wb") as file:
            file.write(content)


def _write(artifact: types.Artifact, config: EmbeddingConfig, report: Json, digests: dict[str, str]) -> None:
    texts = {
        EMBEDDING_CONFIG_FILE: config.to_sealed_json(),
        _PLAN_FILE: (json.dumps(report, indent=2) + "\n").encode(),
        _DIGESTS_FILE: (json.dumps(digests, indent=2, sort_keys=True) + "\n").encode(),
    }
    _write_files(artifact, texts)
    total = report["total"]
    artifact.put_facts(
        tables=len(config.tables),
        features=len(config.features),
        rows=total["rows"],
        bytes=total["table_bytes"] + total["slot_bytes"],
        topology=report["topology"]["name"] if report["topology"] else None,
        vocabularies=digests,
    )

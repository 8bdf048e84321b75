"""Finds what a preflight is for: the slice, and the tables, planned without a run.

The sizes of vocabularies come from the last run, from the tokens of the data, from limits or from an assumption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from components.artifact_files import read_embedding_config
from components.example_gen.data_files import find_files
from components.example_gen.sampling import count_tokens
from components.installed import require_package
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError, DataError
from embedding_core.planning.planner import plan_tables
from embedding_core.planning.topology import GIB, Topology, named_topology
from embedding_core.schema import Json
from embedding_core.storage import is_remote
from pipelines.config import PipelineConfig
from pipelines.config.metadata_server import has_store
from pipelines.config.sections import ASSUMED_TOKENS, data_location
from pipelines.pipeline.component_inputs import (
    data_format,
    example_settings,
    planned_topology,
    table_overrides,
    vocabulary_features,
    vocabulary_limits,
)


def planned_tables(
    config: PipelineConfig, table_configs: Path | None = None, assumed_tokens: int | None = None
) -> tuple[EmbeddingConfig, str]:
    """Return the tables that a run would train, and a description of the source of their sizes.

    Args:
      config: the pipeline.
      table_configs: folder of a TableConfigs artifact, used as it is. None plans the tables of the configuration: a
        vocabulary has its size in the last run, but at most its `max_size`. If the last run did not have it, its tokens
        are counted; if they cannot be, its size is `max_size`, or else the assumed size.
      assumed_tokens: size of a vocabulary that the last run did not have and that has no `max_size`; None counts the
        tokens, and assumes `ASSUMED_TOKENS` if they cannot be counted.

    Raises:
      ConfigError: the folder has no table configs, or the configuration asks for lengths that only the data can give.
    """
    if table_configs is not None:
        return _given(table_configs), f"the table configs in {table_configs}"
    last = last_table_configs(config)
    known = {} if last is None else _vocabulary_sizes(last[0])
    limits = {name: config.vocabularies[name].max_size for name in config.vocabularies}
    names = dict.fromkeys(feature.vocabulary_name for feature in config.features.categorical)
    unknown = names.keys() - known.keys()
    counted, source = _counted(config, known) if assumed_tokens is None and unknown else ({}, "")
    assumed = assumed_tokens or ASSUMED_TOKENS
    sizes = {name: _size(known.get(name, counted.get(name)), limits.get(name), assumed) for name in names}
    tables = plan_tables(_features(config, last), sizes, overrides=table_overrides(config))
    parts = []
    if known.keys() & names.keys():
        parts.append(f"the table configs of the last run, {last[1] if last else ''}, for {_listed(names, known)}")
    if counted:
        parts.append(f"the tokens of {source} for {', '.join(counted)}")
    there = known | counted
    limited = {name: limit for name, limit in limits.items() if limit is not None and name not in there}
    if limited.keys() & names.keys():
        parts.append(f"`max_size` of the vocabularies {_listed(names, limited)}")
    unlimited = [name for name in names if name not in there and name not in limited]
    if unlimited:
        parts.append(f"{assumed:,} tokens assumed for {', '.join(unlimited)}, which have no `max_size`")
    if source and not counted:
        parts.append(source)
    return tables, ("" if there else "before any pass over the data: ") + "; ".join(parts)


def _counted(config: PipelineConfig, known: Container[str]) -> tuple[dict[str, int], str]:
    """Count the tokens that get a row in each vocabulary that is not known; say in which rows, or why in none.

    Columns that Transform makes and data at an address are not counted.
    """
    base, pattern = data_location(config.data)
    features = [
        feature
        for feature in config.features.categorical
        if not feature.after_transform and feature.vocabulary_name not in known
    ]
    if is_remote(base) or not features:
        return {}, ""
    settings, form = example_settings(config), data_format(config)
    sources = {(feature.source, feature.separator) for feature in features}
    try:
        counts = count_tokens(find_files(base, pattern, form, settings.spans).files, form, settings, sources)
    except (ConfigError, DataError) as error:
        return {}, f"no tokens were counted: {str(error).splitlines()[0]}"
    tokens: dict[str, Counter[bytes]] = {}
    for feature in features:
        tokens.setdefault(feature.vocabulary_name, Counter()).update(counts.tokens[feature.source, feature.separator])
    limits = vocabulary_limits(config)
    sizes = {
        name: sum(count >= limits[name].min_count for count in counter.values()) for name, counter in tokens.items()
    }
    rows = f"all {counts.rows:,} rows" if counts.whole else f"the first {counts.rows:,} rows (a run may find more)"
    sizes = {name: size for name, size in sizes.items() if size}
    return sizes, rows if sizes else f"no tokens were counted: {rows} have none that training would keep"


def requested_slice(config: PipelineConfig, topology: str | None = None) -> Topology:
    """Return the TPU slice that `preflight` is for.

    Args:
      config: the pipeline.
      topology: name of a slice; None uses `training.topology`.

    Raises:
      ConfigError: neither names a slice, or the name is unknown.
    """
    name = topology or planned_topology(config)
    if name is None:
        raise ConfigError("`--slice` is not given, and `training.topology` names none: name a TPU slice, such as v3-8.")
    return named_topology(name)


def _given(folder: Path) -> EmbeddingConfig:
    try:
        return read_embedding_config(str(folder))
    except ConfigError as error:
        raise ConfigError(
            f"`--table-configs` is {str(folder)!r}: it must be the folder of a TableConfigs artifact. {error}"
        ) from error


def _size(known: int | None, limit: int | None, assumed: int) -> int:
    if known is None:
        return assumed if limit is None else limit
    return known if limit is None else min(known, limit)


def _listed(names: Iterable[str], chosen: Container[str]) -> str:
    return ", ".join(name for name in names if name in chosen)


def memory_text(plan: Json) -> str:
    """Describe the memory of the fullest core and host, in a plan made by `memory_plan`."""
    used, limit = plan["fullest_core_bytes"] / GIB, plan["bytes_per_core"] / GIB
    hosts = max(plan["host_bytes"]) / GIB
    text = f"{used:.3f} of {limit:.0f} GiB on the fullest core, {hosts:.3f} GiB on the fullest host"
    copied = plan["copy_bytes"] / GIB
    return f"{text}; gradients and padded copies of tables: at most {copied:.3f} GiB more" if copied else text


def last_table_configs(config: PipelineConfig) -> tuple[EmbeddingConfig, str] | None:
    """Return the newest table configs of this pipeline that can be read, and their folder; None if there are none."""
    if not has_store(config.metadata_path):
        return None
    require_package(
        "ml_metadata",
        f"the sizes of the last run are in {config.metadata_path!r}: name the folder of its TableConfigs with "
        "`--table-configs`, or to read them",
    )
    from pipelines.lineage.graph import artifacts_of, open_store, read_node  # it imports ML Metadata

    store = open_store(config.metadata_path)
    for artifact in reversed(artifacts_of(store, "components.TableConfigs", pipeline=config.name)):
        folder = read_node(store, artifact).uri
        try:
            return read_embedding_config(folder), folder
        except ConfigError:
            continue  # deleted or damaged since; a run would restore them
    return None


def _vocabulary_sizes(tables: EmbeddingConfig) -> dict[str, int]:
    return {
        table.vocabulary: table.vocabulary_size - table.oov_rows
        for table in tables.tables
        if table.vocabulary is not None
    }


def _features(config: PipelineConfig, last: tuple[EmbeddingConfig, str] | None) -> list[dict[str, Any]]:
    """Return the features; lengths that are measured in the data are those of the last run."""
    measured = {} if last is None else {feature.name: feature.max_sequence_length for feature in last[0].features}
    features = vocabulary_features(config)
    for feature in features:
        if isinstance(feature["max_sequence_length"], str) and measured.get(feature["name"]):
            feature["max_sequence_length"] = measured[feature["name"]]
    return features

"""Computes the limits of SparseCores for a training, keeps them beside its tables, and gives them to its engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from components import component_spec as keys
from components.base_executor import Execution, files_below
from components.trainer_settings import Settings, read_settings, with_steps
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.planning.topology import Topology
from embedding_core.schema import Json
from embedding_core.sparse_cores import SparseCoreEmbeddingConfig
from embedding_core.storage import exists, read_bounded, sealed_json, unsealed_json
from embedding_core.training_config import TrainingConfig
from embedding_core.vocabulary import Vocabulary

SPARSE_CORE_LIMITS_FILE = "sparse_core_limits.json"
"""File of a TableConfigs artifact for a slice with SparseCores, see `embedding_core.sparse_cores.training_limits`."""


def reads_rows(topology: Topology) -> bool:
    """Return whether the limits of a slice are computed from the rows of the training."""
    return topology.sparse_cores > 0


def table_limits(
    execution: Execution, config: EmbeddingConfig, vocabularies: Mapping[str, Vocabulary], topology: Topology
) -> tuple[dict[str, bytes], Json]:
    """Compute the limits as files and facts of the artifact; none if there are none. See `limits_of_training`."""
    limits = limits_of_training(execution, config, vocabularies, topology)
    if limits is None:
        return {}, {}
    return {SPARSE_CORE_LIMITS_FILE: sealed_json(limits)}, {"sparse_cores": _summary(limits)}


def engine_arguments(folder: str, training: TrainingConfig) -> dict[str, Any]:
    """Read the limits that TableConfigGen computed, as arguments of the layer; none if it computed none.

    Args:
      folder: folder of the TableConfigs artifact.
      training: settings of the training.
    """
    import tensorflow as tf

    # The class of TensorFlow 2.16, on a real TPU, has fixed limits.
    takes_limits = hasattr(tf.tpu.experimental.embedding, "SparseCoreEmbeddingConfig")
    found = read_sparse_core_limits(folder)
    if found is None or not (takes_limits or training.strategy == "simulated_tpu"):
        return {}
    return {"sparse_core_embedding_config": SparseCoreEmbeddingConfig.from_mapping(found["forms"]["tensorflow"])}


def read_sparse_core_limits(folder: str) -> Json | None:
    """Return the limits of SparseCores in a TableConfigs artifact; None if it has none.

    Raises:
      ConfigError: the file is not what TableConfigGen wrote.
    """
    path = os.path.join(folder, SPARSE_CORE_LIMITS_FILE)
    if not exists(path):
        return None
    try:
        return unsealed_json(read_bounded(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path!r} is not what TableConfigGen wrote ({error}): restore it, or run TableConfigGen again."
        ) from error


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
    from embedding_core.sparse_cores.training_limits import sparse_core_limits  # it loads TensorFlow
    from embedding_core.training import TrainingJob

    custom = execution.json(keys.CUSTOM_CONFIG)
    if custom is None or not topology.sparse_cores:
        return None
    given = execution.given_uris(keys.VOCABULARIES, keys.TRANSFORM_GRAPH, keys.SCHEMA, keys.BASE_TABLE_CONFIGS)
    graph, schema = given.get(keys.TRANSFORM_GRAPH), given.get(keys.SCHEMA)
    custom = with_steps(custom, execution.properties.get(keys.TRAINING_STEPS))
    settings = read_settings({**custom, "vocabularies": given[keys.VOCABULARIES]}, Settings)
    sources = settings.sources(config, graph, None if schema is None else os.path.join(schema, "schema.pbtxt"))
    job = TrainingJob(
        inputs=sources.inputs(settings.vocabularies, vocabularies),
        training=settings.training_config,
        model="",
        train_files=files_below(execution.split_folders(keys.EXAMPLES, "train")),
        eval_files=files_below(execution.split_folders(keys.EXAMPLES, "eval")),
        counts={name: vocabulary.counts for name, vocabulary in vocabularies.items()},
    )
    base = given.get(keys.BASE_TABLE_CONFIGS)
    previous = None if base is None else read_sparse_core_limits(base)
    return sparse_core_limits(job, topology, previous=previous["stacks"] if previous else None)


def _summary(limits: Json) -> Json:
    """Return what the lineage shows: the method, and the limits and drift of each stack."""
    stacks = {
        stack["stack"]: [stack["max_ids_per_partition"], stack["max_unique_ids_per_partition"]]
        for stack in limits["stacks"]
    }
    return {key: limits[key] for key in ("method", "batches", "batches_drawn", "drift")} | {"limits": stacks}

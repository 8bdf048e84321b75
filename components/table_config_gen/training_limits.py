"""Computes the limits of SparseCores for the training that comes after TableConfigGen."""

from __future__ import annotations

import os
from collections.abc import Mapping

from components import spec_keys as keys
from components.artifact_files import read_sparse_core_limits
from components.base_executor import Execution, files_below
from components.trainer_settings import Settings, read_settings, with_steps
from embedding_core.config import EmbeddingConfig
from embedding_core.planning.topology import Topology
from embedding_core.schema import Json
from embedding_core.training import TrainingJob
from embedding_core.training.sparse_core_limits import sparse_core_limits
from embedding_core.vocabulary import Vocabulary


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

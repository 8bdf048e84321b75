"""Trains single runs of a pipeline's model that continue one another, as `warm_start: pushed` does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from embedding_core.planning.planner import plan_tables
from embedding_core.vocabulary import Vocabulary, evolved_vocabulary, save_vocabulary, vocabulary_from_counts
from pipelines.config import PipelineConfig
from pipelines.pipeline import component_inputs


def write_examples(rows: pa.Table, path: str) -> None:
    """Write the rows as tf.Examples, without the column `split`."""
    import tensorflow as tf

    columns = {name: rows[name].to_pylist() for name in rows.column_names if name != "split"}
    with tf.io.TFRecordWriter(path) as writer:
        for row in range(rows.num_rows):
            message = tf.train.Example()
            for name, values in columns.items():
                value, feature = values[row], message.features.feature[name]
                if isinstance(value, int):
                    feature.int64_list.value.append(value)
                else:
                    feature.bytes_list.value.append(value.encode())
            writer.write(message.SerializeToString())


def vocabularies_of(
    config: PipelineConfig, rows: pa.Table, base: Mapping[str, Vocabulary] | None
) -> dict[str, Vocabulary]:
    """Return the vocabularies of the rows, evolved from `base` if it is not None."""
    columns: dict[str, list[Mapping[str, Any]]] = {}
    for feature in component_inputs.vocabulary_features(config):
        columns.setdefault(feature["vocabulary"], []).append(feature["column"])
    vocabularies = {}
    for name, sources in columns.items():
        values = pa.concat_arrays([_values_of(rows, column) for column in sources])
        counted = pc.value_counts(values.filter(pc.not_equal(values, "")))
        given = name, counted.field("values").cast(pa.large_binary()), counted.field("counts").to_numpy()
        private = any(column["private"] for column in sources)
        if base is None:
            vocabularies[name] = vocabulary_from_counts(*given, private=private)
        else:
            vocabularies[name] = evolved_vocabulary(base[name], *given[1:], mode="rerank", private=private)
    return vocabularies


def _values_of(rows: pa.Table, column: Mapping[str, Any]) -> pa.Array:
    """Return the values of a feature's column, split into tokens if it has a separator."""
    values = rows[column["name"]].combine_chunks()
    return pc.split_pattern(values, column["separator"]).flatten() if column["separator"] else values


class Run(NamedTuple):
    """A run that was trained: its job, training checkpoint and number of steps."""

    job: Any
    checkpoint: str
    step: int


def train_once(
    config: PipelineConfig,
    vocabularies: Mapping[str, Vocabulary],
    work: Path,
    earlier: Path | None,
    *,
    files: Sequence[str],
    eval_file: str,
    changes: Mapping[str, Any],
    with_dense: bool = False,
) -> Run:
    """Train a run into `work`, and leave the embedding checkpoint `checkpoint` there.

    Args:
      config: features, tables, model and training.
      vocabularies: those of the run.
      work: folder to write.
      earlier: embedding checkpoint whose rows and slots the run starts from, remapped by token; None for a cold start.
      files: TFRecord files to train on.
      eval_file: TFRecord file to evaluate on, after the last step only.
      changes: fields of `TrainingConfig` that replace those of the configuration.
      with_dense: whether the dense part also starts from the earlier run, and is kept in the checkpoint.
    """
    import tensorflow as tf

    from embedding_core.checkpoint import load_checkpoint_into, remap, retrieve
    from embedding_core.checkpoint.dense import DENSE
    from embedding_core.training import Inputs, TrainingConfig, TrainingJob, train
    from embedding_core.training_config import DenseStart

    sizes = {name: len(vocabulary) for name, vocabulary in vocabularies.items()}
    features = component_inputs.vocabulary_features(config)
    tables = plan_tables(features, sizes, overrides=component_inputs.table_overrides(config))
    for vocabulary in vocabularies.values():
        save_vocabulary(vocabulary, work)
    start = work / "start"
    if earlier is not None:
        remap(earlier, tables, vocabularies, start)

    def warm_start(variables: Mapping[str, Any]) -> None:
        digests = {name: vocabulary.digest for name, vocabulary in vocabularies.items()}
        load_checkpoint_into(start, variables, tables, vocabulary_digests=digests)

    training = TrainingConfig.from_mapping(component_inputs.training_config(config))
    job = TrainingJob(
        inputs=Inputs(
            config=tables,
            vocabularies={name: os.path.join(work, f"{name}.txt") for name in vocabularies},
            raw_spec={"label": tf.io.FixedLenFeature([], tf.int64)},
        ),
        training=training.replace(eval_every=10**9, **changes),
        model=config.model.module,
        arguments=config.build_arguments,
        train_files=list(files),
        eval_files=[eval_file],
        counts={name: vocabulary.counts for name, vocabulary in vocabularies.items()},
        warm_start=warm_start if earlier else None,
        dense_start=DenseStart(folder=str(start / DENSE)) if earlier and with_dense else None,
    )
    result = train(job, str(work / "run"))
    dense = str(work / "run" / DENSE) if with_dense else None
    retrieve(result.checkpoint, tables, work / "checkpoint", vocabularies=vocabularies, dense=dense)
    shutil.rmtree(start, ignore_errors=True)
    return Run(job, result.checkpoint, result.step)

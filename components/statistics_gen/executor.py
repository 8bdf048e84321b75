"""Defines the executor of StatisticsGen: TFX's own, or one that computes statistics of a sample with exact counts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_data_validation as tfdv
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from components import component_spec as keys
from components import progress
from components.base_executor import ComponentExecutor, Execution, files_below
from components.column_summary import COLUMNS_FACT, ColumnSummary, summaries_from_json
from components.compat import StatisticsExecutor
from embedding_core.errors import DataError
from embedding_core.record_files import open_records

# Computes statistics of every n-th row with TFDV, then replaces the figures that are known exactly for all rows.

_BATCH = 4096
_TYPES = {
    "bytes": statistics_pb2.FeatureNameStatistics.STRING,
    "int64": statistics_pb2.FeatureNameStatistics.INT,
    "float": statistics_pb2.FeatureNameStatistics.FLOAT,
}


def sampled_statistics(
    files: Sequence[str], rows: int, columns: Mapping[str, ColumnSummary], step: int
) -> statistics_pb2.DatasetFeatureStatisticsList:
    """Compute the statistics of one split.

    Args:
      files: TFRecord files of tf.Examples, all gzipped or none.
      rows: number of rows in them.
      columns: exact figures of their columns.
      step: every `step`-th row is taken, starting with the first; 1 takes all.

    Raises:
      DataError: a file is damaged.
    """
    sample = _every(files, step)
    result = stats_impl.generate_statistics_in_memory(
        ExamplesToRecordBatchDecoder().DecodeBatch(sample), tfdv.StatsOptions()
    )
    (dataset,) = result.datasets
    dataset.num_examples = rows
    for name, feature in features_of(dataset, columns).items():
        _correct(feature, columns[name], rows)
    return result


def features_of(
    dataset: statistics_pb2.DatasetFeatureStatistics, columns: Mapping[str, ColumnSummary]
) -> dict[str, statistics_pb2.FeatureNameStatistics]:
    """Return the features of columns by name; adds those that TFDV leaves out because no row has a value.

    SchemaGen infers the types of columns from the features, so a schema has the empty columns too.

    Args:
      dataset: statistics of the rows, to which features are added.
      columns: exact figures of the columns.
    """
    features = {".".join(feature.path.step): feature for feature in dataset.features}
    for name in columns.keys() - features.keys():
        features[name] = dataset.features.add(type=_TYPES[columns[name].kind])
        features[name].path.step.append(name)
    return {name: features[name] for name in columns}


def add_empty_columns(path: str, rows: int, columns: Mapping[str, ColumnSummary]) -> None:
    """Add to the file of TFX's StatisticsGen the columns that no row has a value of."""
    with fileio.open(path, "rb") as file:
        statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(file.read())
    (dataset,) = statistics.datasets
    empty = {name: column for name, column in columns.items() if not column.rows}
    if not empty.keys() - {".".join(feature.path.step) for feature in dataset.features}:
        return
    for name, feature in features_of(dataset, empty).items():
        _correct(feature, empty[name], rows)
    with fileio.open(path, "wb") as file:
        file.write(statistics.SerializeToString(deterministic=True))


def _every(files: Sequence[str], step: int) -> list[bytes]:
    records = open_records(sorted(files)).shard(step, 0).batch(_BATCH)
    try:
        batches = list(records.as_numpy_iterator())
    except tf.errors.OpError as error:
        raise DataError(f"cannot read the examples {list(files)}: {error.message}") from error
    taken: list[bytes] = np.concatenate(batches).tolist() if batches else []
    return taken


def _correct(feature: statistics_pb2.FeatureNameStatistics, summary: ColumnSummary, rows: int) -> None:
    is_text = summary.kind == "bytes"
    statistics = feature.string_stats if is_text else feature.num_stats
    common = statistics.common_stats
    common.num_non_missing, common.num_missing = summary.rows, rows - summary.rows
    common.min_num_values, common.max_num_values = summary.fewest, summary.most
    common.tot_num_values, common.avg_num_values = summary.values, summary.values / max(1, summary.rows)
    for nested in common.presence_and_valency_stats:
        nested.num_non_missing, nested.num_missing = common.num_non_missing, common.num_missing
        nested.min_num_values, nested.max_num_values = common.min_num_values, common.max_num_values
        nested.tot_num_values = common.tot_num_values
    if is_text:
        statistics.unique = 1 if summary.only else max(statistics.unique, 2 if summary.rows else 0)
    elif summary.smallest is not None and summary.largest is not None:
        statistics.min, statistics.max = summary.smallest, summary.largest
        statistics.mean = summary.total / summary.values


_FILE = "FeatureStats.pb"
_SAMPLE_RATES = "sample_rate_by_split"


class Executor(ComponentExecutor, StatisticsExecutor):
    """Computes statistics of each split."""

    COMPONENT = "StatisticsGen"

    def execute(self, execution: Execution) -> None:
        """Write the statistics of each split.

        Raises:
          DataError: a file of the examples is damaged.
        """
        sample_rows = int(execution.properties.get(keys.SAMPLE_ROWS) or 0)
        examples = artifact_utils.get_single_instance(execution.inputs[keys.EXAMPLES])
        is_known = examples.has_custom_property(COLUMNS_FACT)
        if not sample_rows or not is_known:
            given = {key: value for key, value in execution.properties.items() if key != keys.SAMPLE_ROWS}
            StatisticsExecutor.Do(self, execution.inputs, execution.outputs, given)
        if not is_known:
            return
        rows, columns = summaries_from_json(examples.get_string_custom_property(COLUMNS_FACT))
        statistics = execution.output(keys.STATISTICS)
        if not sample_rows:
            for split in artifact_utils.decode_split_names(examples.split_names):
                path = os.path.join(artifact_utils.get_split_uri([statistics], split), _FILE)
                add_empty_columns(path, rows[split], columns[split])
            return
        statistics.split_names = examples.split_names
        statistics.span = examples.span
        rates = {}
        for number, split in enumerate(artifact_utils.decode_split_names(examples.split_names)):
            progress.report("StatisticsGen", number, len(rows), unit="splits", detail=split)
            step = max(1, rows[split] // sample_rows)
            files = files_below(execution.split_folders(keys.EXAMPLES, split))
            result = sampled_statistics(files, rows[split], columns[split], step)
            folder = artifact_utils.get_split_uri([statistics], split)
            fileio.makedirs(folder)
            with fileio.open(os.path.join(folder, _FILE), "wb") as file:
                file.write(result.SerializeToString(deterministic=True))
            rates[split] = 1 / step
        # TFX's executor writes JSON within JSON too.
        statistics.set_json_value_custom_property(_SAMPLE_RATES, json.dumps(rates))

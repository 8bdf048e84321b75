"""Computes statistics of every n-th row with TFDV, then replaces the figures that are known exactly for all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_data_validation as tfdv
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx.dsl.io import fileio
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from components.column_summary import ColumnSummary
from embedding_core.errors import DataError
from embedding_core.record_files import open_records

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
        found = statistics_pb2.DatasetFeatureStatisticsList.FromString(file.read())
    (dataset,) = found.datasets
    empty = {name: one for name, one in columns.items() if not one.rows}
    if not empty.keys() - {".".join(feature.path.step) for feature in dataset.features}:
        return
    for name, feature in features_of(dataset, empty).items():
        _correct(feature, empty[name], rows)
    with fileio.open(path, "wb") as file:
        file.write(found.SerializeToString(deterministic=True))


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
        statistics.unique = 1 if summary.only else max(statistics.unique, 2)
    elif summary.smallest is not None and summary.largest is not None:
        statistics.min, statistics.max = summary.smallest, summary.largest
        statistics.mean = summary.total / summary.values

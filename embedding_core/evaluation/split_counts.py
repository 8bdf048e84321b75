"""Counts the rows of a split by class, and the tokens of each feature that its vocabulary does not know."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.tasks import Task
from embedding_core.training.row_stream import batches_once
from embedding_core.training.training_inputs import Inputs, RowParser

_BATCH = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureCounts:
    """Counts of one categorical feature in a split.

    Attributes:
      empty_rows: number of rows without any token.
      tokens: number of token occurrences.
      unknown_tokens: number of occurrences of tokens that the vocabulary does not have; 0 for raw ids.
      unknown_rows: number of rows with at least one unknown token.
    """

    empty_rows: int
    tokens: int
    unknown_tokens: int
    unknown_rows: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """Counts of one label in a split.

    Attributes:
      rows: number of rows that have the label.
      positives, negatives: numbers of rows with label 1 and label 0; None if the label is not binary.
    """

    rows: int
    positives: int | None
    negatives: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Counts of a split.

    Attributes:
      rows: number of rows.
      labels: counts by the name of the task; if the data has no label, each row counts as label 1.
      features: counts by categorical feature.
    """

    rows: int
    labels: Mapping[str, LabelCounts]
    features: Mapping[str, FeatureCounts]

    @property
    def only_positives(self) -> bool:
        """Whether some binary label is 1 in each row that has it."""
        return any(label.negatives == 0 and bool(label.positives) for label in self.labels.values())


def count_split(inputs: Inputs, files: Sequence[str]) -> SplitCounts:
    """Count the rows of a split in one pass, parsed as in training.

    Args:
      inputs: sources of the inputs.
      files: TFRecord files of the split.
    """
    counting = dataclasses.replace(inputs, config=_with_one_unknown_row(inputs.config))
    parse, counts, rows = RowParser(counting).traced(), Counter[tuple[str, str]](), 0
    labelled, positives = np.zeros(len(inputs.tasks), np.int64), np.zeros(len(inputs.tasks), np.int64)
    for _, serialized in batches_once(list(files), _BATCH):
        batch = parse(serialized)
        rows += int(batch["rows"])
        label = batch["label"].numpy()
        labelled += (~np.isnan(label)).sum(axis=0)
        positives += (label == 1).sum(axis=0)
        for feature in counting.config.features:
            table = counting.config.table_of(feature.name)
            counts.update({(feature.name, key): n for key, n in _counts(table, batch["ids"][feature.name]).items()})
    names = [field.name for field in dataclasses.fields(FeatureCounts)]
    return SplitCounts(
        rows=rows,
        labels={
            task.name: _label_counts(task, int(has), int(one))
            for task, has, one in zip(inputs.tasks, labelled, positives, strict=True)
        },
        features={
            feature.name: FeatureCounts(**{name: counts[feature.name, name] for name in names})
            for feature in inputs.config.features
        },
    )


def _label_counts(task: Task, rows: int, positives: int) -> LabelCounts:
    if not task.is_binary:
        return LabelCounts(rows=rows, positives=None, negatives=None)
    return LabelCounts(rows=rows, positives=positives, negatives=rows - positives)


def _with_one_unknown_row(config: EmbeddingConfig) -> EmbeddingConfig:
    """Give every table one unknown row, its last id, so that every unknown token is counted and none is dropped."""
    tables = [
        table
        if table.vocabulary is None
        else table.replace(vocabulary_size=table.vocabulary_size - table.oov_rows + 1, oov_rows=1)
        for table in config.tables
    ]
    return config.replace(tables=tuple(tables))


def _counts(table: TableConfig, ids: tf.RaggedTensor) -> dict[str, int]:
    values, splits = ids.values.numpy(), ids.row_splits.numpy()
    unknown = (values == table.vocabulary_size - 1) & (table.vocabulary is not None)
    before = np.concatenate([[0], np.cumsum(unknown)])
    return {
        "empty_rows": int((np.diff(splits) == 0).sum()),
        "tokens": len(values),
        "unknown_tokens": int(before[-1]),
        "unknown_rows": int((before[splits[1:]] > before[splits[:-1]]).sum()),
    }

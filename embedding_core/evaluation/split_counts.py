"""Counts the rows of a split: its classes, and per feature the tokens that the vocabulary does not know."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.training.row_stream import batches_once
from embedding_core.training.training_inputs import Inputs, RowParser

_BATCH = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureCounts:
    """What one categorical feature has in a split.

    Attributes:
      empty_rows: rows without any token.
      tokens: occurrences of tokens.
      unknown_tokens: occurrences of tokens that the vocabulary does not have; 0 for raw ids.
      unknown_rows: rows with at least one of these.
    """

    empty_rows: int
    tokens: int
    unknown_tokens: int
    unknown_rows: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """What a split holds.

    Attributes:
      rows: how many rows.
      positives: rows with label 1; all rows if the data has no label.
      features: counts by categorical feature.
    """

    rows: int
    positives: int
    features: Mapping[str, FeatureCounts]

    @property
    def negatives(self) -> int:
        """Rows with label 0."""
        return self.rows - self.positives


def count_split(inputs: Inputs, files: Sequence[str]) -> SplitCounts:
    """Count the rows of a split in one pass, by the functions that training reads it with.

    Args:
      inputs: how rows are read.
      files: TFRecord files of the split.
    """
    counting = dataclasses.replace(inputs, config=_with_one_unknown_row(inputs.config))
    parser, found, rows, positives = RowParser(counting), Counter[tuple[str, str]](), 0, 0
    for _, serialized in batches_once(list(files), _BATCH):
        batch = parser(serialized)
        rows += int(batch["rows"])
        positives += int((batch["label"].numpy() == 1).sum())
        for feature in counting.config.features:
            table = counting.config.table_of(feature.name)
            found.update({(feature.name, key): n for key, n in _counts(table, batch["ids"][feature.name]).items()})
    names = [field.name for field in dataclasses.fields(FeatureCounts)]
    return SplitCounts(
        rows=rows,
        positives=positives,
        features={
            feature.name: FeatureCounts(**{name: found[feature.name, name] for name in names})
            for feature in inputs.config.features
        },
    )


def _with_one_unknown_row(config: EmbeddingConfig) -> EmbeddingConfig:
    """The configuration in which every unknown token has the last id of its table: none is dropped unseen."""
    tables = [
        table
        if table.vocabulary is None
        else dataclasses.replace(table, vocabulary_size=table.vocabulary_size - table.oov_rows + 1, oov_rows=1)
        for table in config.tables
    ]
    return dataclasses.replace(config, tables=tuple(tables))


def _counts(table: TableConfig, ids: Any) -> dict[str, int]:
    values, splits = ids.values.numpy(), ids.row_splits.numpy()
    unknown = (values == table.vocabulary_size - 1) & (table.vocabulary is not None)
    before = np.concatenate([[0], np.cumsum(unknown)])
    return {
        "empty_rows": int((np.diff(splits) == 0).sum()),
        "tokens": len(values),
        "unknown_tokens": int(before[-1]),
        "unknown_rows": int((before[splits[1:]] > before[splits[:-1]]).sum()),
    }

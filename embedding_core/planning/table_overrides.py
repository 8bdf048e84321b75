"""Declares the overrides of a table's defaults: the section `tables` of the YAML file, and what the planner reads."""

from __future__ import annotations

from typing import Any

from embedding_core.config import Combiner, InitializerConfig
from embedding_core.optimizers import AnyOptimizer
from embedding_core.schema import Count, Json, Positive, Section


class TableOverrides(Section):
    """Overrides of a table's defaults, which come from the data; null leaves the default.

    Attributes:
      dim: length of a row.
      combiner: how the rows of one example become one vector.
      optimizer: optimizer of this table: a name, or a mapping with `name` and hyperparameters.
      initializer: initial values of the rows.
    """

    dim: Positive | None = None
    combiner: Combiner | None = None
    optimizer: AnyOptimizer | None = None
    initializer: InitializerConfig | None = None

    def given(self) -> dict[str, Any]:
        """Return what is overridden, by field."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}


class TableSettings(TableOverrides):
    """Overrides of the defaults of a table and its vocabulary; None leaves the default.

    Attributes:
      oov_rows: number of rows that unknown tokens share.
      occurrences_per_column: how often an average row must occur in the data for each column of the default dim; the
        default dim is at least 8 in any case.
    """

    oov_rows: Count | None = None
    occurrences_per_column: Positive | None = None

    def to_mapping(self) -> Json:
        """Return what is overridden, by field, as JSON values."""
        given = super().to_mapping()
        keys = ("oov_rows", "occurrences_per_column", *TableOverrides.model_fields)
        return {key: given[key] for key in keys if given[key] is not None}

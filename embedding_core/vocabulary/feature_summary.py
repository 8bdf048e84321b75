"""Summarizes what counting found about one feature that feeds a vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from embedding_core.config import ColumnConfig

_PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSummary:
    """Statistics of one feature that feeds a vocabulary.

    Attributes:
      column: column of the feature, with the dtype and valency found in the data.
      rows: number of rows read.
      missing: number of rows without any token.
      token_count: number of token occurrences.
      lengths: tokens per row, empty rows included: the smallest length that at least 50, 90, 95, 99
        and 100% of the rows do not exceed, as "p50", "p90", "p95", "p99" and "max".
      new_rows: number of rows with at least one token that the base vocabulary does not have; None without a base.
      new_tokens: number of token occurrences that the base does not have; None without a base.
    """

    column: ColumnConfig
    rows: int
    missing: int
    token_count: int
    lengths: Mapping[str, int]
    new_rows: int | None = None
    new_tokens: int | None = None

    @property
    def drift(self) -> dict[str, float]:
        """Return how much of the feature's data the base vocabulary does not know.

        Returns:
          "new_rows", the share of rows with at least one token that the base does not have, and "new_tokens", the
          share of token occurrences that it does not have; from 0 to 1. Empty without a base.
        """
        if self.new_rows is None or self.new_tokens is None:
            return {}
        return {
            "new_rows": self.new_rows / max(1, self.rows),
            "new_tokens": self.new_tokens / max(1, self.token_count),
        }


def length_percentiles(histogram: npt.ArrayLike) -> dict[str, int]:
    """Compute percentiles of the number of tokens per row.

    Args:
      histogram: [longest + 1] how many rows have 0, 1, 2, ... tokens.

    Returns:
      "p50", "p90", "p95", "p99", "max": the smallest length that at least that share of the rows does not exceed.
    """
    rows = np.cumsum(np.asarray(histogram, np.int64))
    total = int(rows[-1]) if rows.size else 0
    return {name: int(np.searchsorted(rows * 100, total * share)) for name, share in _PERCENTILES.items()}

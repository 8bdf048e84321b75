"""Counts values from a stream in buckets, for quantiles in bounded memory."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import numpy.typing as npt

_GROWTH = math.log(1.02)
_ZERO = -(10**9)


class Distribution:
    """Distribution of numbers of at least 0, with quantiles that are at most 1% off; mean and maximum are exact.

    A bucket holds the values between two powers of 1.02 (Masson, Rim and Lee, "DDSketch", 2019), so that 10,000,000
    values need no more memory than some hundred.

    Attributes:
      count: how many values were added.
      total: their sum.
      largest: the largest of them; 0 if there is none.
    """

    def __init__(self) -> None:
        self.count, self.total, self.largest = 0, 0.0, 0.0
        self._buckets: Counter[int] = Counter()
        self._infinite = 0

    def add(self, values: npt.ArrayLike) -> None:
        """Add numbers of at least 0; infinity counts as the largest."""
        given = np.asarray(values, np.float64).ravel()
        if not given.size:
            return
        finite = given[np.isfinite(given)]
        places = np.full(finite.shape, _ZERO, np.int64)
        positive = finite > 0
        places[positive] = np.ceil(np.log(finite[positive]) / _GROWTH).astype(np.int64)
        for place, count in zip(*np.unique(places, return_counts=True), strict=True):
            self._buckets[int(place)] += int(count)
        self._infinite += given.size - finite.size
        self.count += given.size
        self.total += float(given.sum())
        self.largest = max(self.largest, float(given.max()))

    @property
    def mean(self) -> float:
        """The mean; 0 if there are no values."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return the smallest value that at least this share of the values do not exceed; 0 if there are none."""
        rank, seen = math.ceil(share * self.count), 0
        for place in sorted(self._buckets):
            seen += self._buckets[place]
            if seen >= rank:
                return 0.0 if place == _ZERO else min(math.exp((place - 0.5) * _GROWTH), self.largest)
        return self.largest

"""Measures how often bounds from the first batches cover a whole training, and how tight they are.

python tests/sparse_cores/judge/coverage.py
"""

from __future__ import annotations

import itertools

import cases
import numpy as np

from embedding_core.sparse_cores import LimitCounter, Limits, Slice, stacks_of

_TRAININGS, _BATCHES, _FIRST = 60, 300, (30, 60, 100)
_ROWS, _SLICE = 256, Slice(chips=4, per_chip=2)


def _counts(limits: Limits) -> tuple[int, int, int]:
    return limits.max_ids_per_partition, limits.max_unique_ids_per_partition, limits.buffer_per_core


def main() -> None:
    """Print for each distribution and number of first batches the share that is covered, and bound / seen."""
    stacks = stacks_of(cases.MODEL, _SLICE, _ROWS)
    for distribution in ("uniform", "zipf"):
        ratios: dict[int, list[float]] = {first: [] for first in _FIRST}
        for seed in range(_TRAININGS):
            counters = {n: LimitCounter(cases.MODEL, _SLICE, _ROWS, stacks) for n in (*_FIRST, _BATCHES)}
            batches = cases.drawn(distribution, 1000 + seed, batches=_BATCHES + 1, size=_ROWS)
            for number, batch in enumerate(itertools.islice(batches, _BATCHES)):
                for last, counter in counters.items():
                    if number < last:
                        counter.add(batch)
            seen = counters[_BATCHES].limits()
            for first in _FIRST:
                bounds = counters[first].bounds(_BATCHES, cases.CONFIDENCE)
                for bound, one in zip(bounds, seen, strict=True):
                    ratios[first] += np.divide(_counts(bound), _counts(one)).tolist()
        for first, values in ratios.items():
            print(
                f"{distribution}, first {first}: {np.mean(np.array(values) >= 1):.1%} covered, bound / seen "
                f"{np.mean(values):.3f} in the mean, {max(values):.3f} at most"
            )


if __name__ == "__main__":
    main()

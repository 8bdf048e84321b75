"""Compares choices by the figures of their short runs, with the noise of the seeds.

A difference of two choices is noise unless it exceeds the half width of its 95% confidence interval (Student's t), for
the standard deviation that the choices' runs have around their own means, pooled over all choices.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from pipelines.choices.choice import AS_CONFIGURED, Choice

_QUANTILE = 0.975
_Estimate: TypeAlias = tuple[float, list[Choice]]  # a loss, and the trained choices that it is from


class Loss(NamedTuple):
    """How much worse a choice is than the configuration.

    Attributes:
      value: the loss; below 0 if the choice is better.
      noise: half width of the 95% confidence interval of the difference.
      source: "measured" by runs of the choice, or "estimated" from runs of others.
    """

    value: float
    noise: float
    source: Literal["measured", "estimated"]

    @property
    def counted(self) -> float:
        """The loss; 0 for a gain, and for a measured loss within the noise."""
        within = self.source == "measured" and self.value <= self.noise
        return 0.0 if within else max(0.0, self.value)


class Losses:
    """The losses of choices, from the figures of short runs.

    A choice that was not trained is estimated as the sum of the counted losses of its parts. If a trained combination
    lost more than the sum of its parts, its tables share the rest evenly, so that losses within the noise are not
    forgotten, and no estimate is below the loss of a trained combination that the choice contains.

    Attributes:
      failed: the choices whose runs failed.

    Args:
      figures: figure of each finished run, by choice; none of a choice whose runs failed.
      higher_is_better: whether a higher figure is better, as of an AUC.
      configured: dim of each table as configured.
    """

    def __init__(
        self, figures: Mapping[Choice, Sequence[float]], *, higher_is_better: bool, configured: Mapping[str, int]
    ) -> None:
        self._figures = {choice: values for choice, values in figures.items() if values}
        self.failed = frozenset(choice for choice, values in figures.items() if not values)
        self._sign = 1.0 if higher_is_better else -1.0
        self._configured = configured

    @property
    def measured(self) -> list[Choice]:
        """The choices that were trained, in the order of the runs."""
        return list(self._figures)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of runs of one choice, pooled over the choices; None without two runs of one."""
        freedom = self._freedom
        if not freedom:
            return None
        squares = sum(sum((one - statistics.mean(v)) ** 2 for one in v) for v in self._figures.values())
        return math.sqrt(squares / freedom)

    @property
    def _freedom(self) -> int:
        return sum(len(values) - 1 for values in self._figures.values())

    def of(self, choice: Choice) -> Loss | None:
        """Return the loss of a choice; None if its runs failed, or neither it nor all of its parts were measured."""
        if AS_CONFIGURED not in self._figures or self.deviation is None or choice in self.failed:
            return None
        if choice in self._figures:
            return self._measured(choice)
        parts = self._sum_of_parts(choice)
        if parts is None:
            return None
        value, used = parts
        rest, combination = max(self._rests(choice), default=(0.0, AS_CONFIGURED))
        return Loss(value + rest, self._noise([*used, *([combination] if rest else [])]), "estimated")

    def _sum_of_parts(self, choice: Choice) -> _Estimate | None:
        """Add up the losses of the dims of all tables and of the batch, or without a batch of the dim of each table."""
        if choice.batch_size is None:
            parts = [self._dim(table, dim) for table, dim in choice.dims]
        else:
            parts = [self._whole(Choice(choice.dims)), self._whole(Choice(batch_size=choice.batch_size))]
        known = [one for one in parts if one is not None]
        if not known or len(known) < len(parts):
            return None
        return sum(value for value, _ in known), list(dict.fromkeys(one for _, used in known for one in used))

    def _whole(self, choice: Choice) -> _Estimate | None:
        """Return the loss of the dims of all tables, or of the batch."""
        if choice in self._figures:
            return self._measured(choice).counted, [choice]
        parts = None if choice in self.failed or not choice.dims else self._sum_of_parts(choice)
        loss = None if parts is None else self.of(choice)
        return None if parts is None or loss is None else (loss.value, parts[1])

    def _dim(self, table: str, dim: int) -> _Estimate | None:
        """Return the loss of a dim of a table, between the configured dim and one that was trained.

        It grows evenly from 0 at the configured dim to the loss of a trained one, and does not fall below that.
        """
        single = Choice(((table, dim),))
        if single in self._figures and dim > self._configured[table]:
            return self._measured(single).counted, [single]
        trained = [one for one in self._figures if one.batch_size is None and [name for name, _ in one.dims] == [table]]
        smaller = [one for one in trained if one.dims[0][1] <= dim]
        if not smaller or single in self.failed or dim > self._configured[table]:
            return None
        value = max(self._share(one, single) * self._measured(one).counted for one in trained)
        return value, [max(smaller, key=lambda one: one.dims)]

    def _rests(self, choice: Choice) -> Iterator[tuple[float, Choice]]:
        """Yield what trained combinations lost beyond the sum of their parts, as far as the choice contains them."""
        for combination in self._figures:
            if combination.batch_size != choice.batch_size or len(combination.parts) < 2 or len(choice.parts) < 2:
                continue
            parts, share = self._sum_of_parts(combination), self._share(combination, choice)
            if parts is not None and share:
                yield share * max(0.0, self._measured(combination).counted - parts[0]), combination

    def _share(self, combination: Choice, choice: Choice) -> float:
        """Return how much of the smaller dims of a combination a choice has: 1 if its dims are as small, or smaller."""
        dims, shares = dict(choice.dims), []
        for table, dim in combination.dims:
            configured = self._configured[table]
            if dim < configured:
                shares.append(min(1.0, max(0.0, (configured - dims.get(table, configured)) / (configured - dim))))
        return statistics.mean(shares) if shares else 0.0

    def _measured(self, choice: Choice) -> Loss:
        return Loss(self._difference(choice), self._noise([choice]), "measured")

    def _difference(self, choice: Choice) -> float:
        return self._sign * (statistics.mean(self._figures[AS_CONFIGURED]) - statistics.mean(self._figures[choice]))

    def _noise(self, measured: Sequence[Choice]) -> float:
        """Compute the noise of the sum of the choices' differences from the configuration, which they share."""
        from scipy import stats

        variance = sum(1 / len(self._figures[one]) for one in measured if one != AS_CONFIGURED)
        shared = len([one for one in measured if one != AS_CONFIGURED])
        variance += shared**2 / len(self._figures[AS_CONFIGURED])
        return float(stats.t.ppf(_QUANTILE, self._freedom)) * (self.deviation or 0.0) * math.sqrt(variance)


def loss_of(losses: Losses | None) -> Callable[[Choice], float | None]:
    """Return the function that `chain` asks for the loss of a choice; without losses every choice loses nothing."""

    def counted(choice: Choice) -> float | None:
        loss = None if losses is None else losses.of(choice)
        return 0.0 if losses is None else None if loss is None else loss.counted

    return counted

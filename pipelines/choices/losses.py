"""Compares choices by the figures of their short runs, with the noise of the seeds.

A difference of two choices is noise unless it exceeds the half width of its 95% confidence interval (Student's t), for
the standard deviation that the choices' runs have around their own means, pooled over all choices.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from pipelines.choices.choice import AS_CONFIGURED, Choice

_QUANTILE = 0.975


class Loss(NamedTuple):
    """How much worse a choice is than the configuration.

    Attributes:
      value: the loss; below 0 if the choice is better.
      noise: largest size of a difference that the seeds alone explain.
      source: "measured" by runs of the choice, or "estimated" as the sum of what its parts lose; a part whose loss is
        noise adds nothing.
    """

    value: float
    noise: float
    source: Literal["measured", "estimated"]

    @property
    def counted(self) -> float:
        """The loss, and 0 if it is measured and is noise."""
        return 0.0 if self.source == "measured" and abs(self.value) <= self.noise else self.value


class Losses:
    """The losses of choices, from the figures of short runs.

    Args:
      figures: figure of each finished run, by choice.
      higher_is_better: whether a higher figure is better, as of an AUC.
      configured: dim of each table as configured.
    """

    def __init__(
        self, figures: Mapping[Choice, Sequence[float]], *, higher_is_better: bool, configured: Mapping[str, int]
    ) -> None:
        self._figures = {choice: values for choice, values in figures.items() if values}
        self._sign = 1.0 if higher_is_better else -1.0
        self._configured = configured

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
        """Return the loss of a choice; None if neither it nor all of its parts were measured."""
        if AS_CONFIGURED not in self._figures or self.deviation is None:
            return None
        if choice in self._figures:
            return self._measured(choice)
        scaled = [self._part(part) for part in choice.parts]
        known = [one for one in scaled if one is not None]
        if len(known) < len(scaled):
            return None
        value = sum(share * self._measured(measured).counted for measured, share in known)
        return Loss(value, self._noise([measured for measured, _ in known]), "estimated")

    def _part(self, part: Choice) -> tuple[Choice, float] | None:
        """Return the measured choice that a part is estimated from, and the share of its loss.

        The loss of a dim between the configured one and a measured one grows evenly from 0 to the measured loss.
        """
        if part in self._figures:
            return part, 1.0
        for table, dim in part.dims:
            for measured in self._figures:
                if len(measured.parts) == 1 and measured.dims and measured.dims[0][0] == table:
                    configured, least = self._configured[table], measured.dims[0][1]
                    if least < dim < configured:
                        return measured, (configured - dim) / (configured - least)
        return None

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

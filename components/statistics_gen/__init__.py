"""StatisticsGen: TFX's own, which can compute what is not decisive from a sample."""

from components.statistics_gen.component import StatisticsGen

__all__ = ["StatisticsGen"]

"""Defines StatisticsGen, the component that computes statistics of raw columns."""

from __future__ import annotations

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec

from components import component_spec as keys
from components.component_spec import DeclaredComponent, channels, parameters
from components.statistics_gen.executor import Executor


class StatisticsGen(DeclaredComponent, base_beam_component.BaseBeamComponent):
    """Computes statistics of raw columns, for SchemaGen, ExampleValidator and the report.

    With `sample_rows`, TFDV computes histograms, quantiles, standard deviations and frequent values from a sample, in
    this process. The numbers of rows, values and missing values, the minimum, maximum and mean, and whether a column is
    constant are exact: ExampleGen computed them from all rows. Without `sample_rows`, or if another ExampleGen wrote
    the Examples, TFX's StatisticsGen does all the work.

    Component `outputs` contains:
      - `statistics`: Channel of type `standard_artifacts.ExampleStatistics`, in TFDV's format. Its custom property
        `sample_rate_by_split` holds the share of rows that were sampled, in the same form as TFX's StatisticsGen.
    """

    PARAMETERS = parameters({}, optional={keys.SAMPLE_ROWS: int, keys.CODE_FINGERPRINT: str})
    INPUTS = channels(keys.EXAMPLES)
    OUTPUTS = channels(keys.STATISTICS)
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(self, examples: types.BaseChannel, sample_rows: int = 0, code_fingerprint: str | None = None) -> None:
        """Construct a StatisticsGen.

        Args:
          examples: a channel of `Examples`.
          sample_rows: minimum number of sampled rows per split (all rows of a smaller split); 0 means no sampling.
          code_fingerprint: digest of the code that runs, so that the cache misses when the code changes.
        """
        super().__init__(examples=examples, sample_rows=sample_rows, code_fingerprint=code_fingerprint)

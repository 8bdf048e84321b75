"""The StatisticsGen component."""

from __future__ import annotations

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec
from tfx.types.component_spec import ComponentSpec

from components import spec_keys as keys
from components.component_spec import channels, parameters, spec_with_outputs
from components.statistics_gen.executor import Executor


class StatisticsGenSpec(ComponentSpec):
    """Inputs, parameters and outputs of StatisticsGen: those of TFX's that the pipeline uses, and the sample."""

    PARAMETERS = parameters({}, optional={keys.SAMPLE_ROWS: int})
    INPUTS = channels(keys.EXAMPLES)
    OUTPUTS = channels(keys.STATISTICS)


class StatisticsGen(base_beam_component.BaseBeamComponent):
    """Computes statistics of raw columns, for SchemaGen, ExampleValidator and the report.

    With `sample_rows`, histograms, quantiles, deviations and frequent values are of a sample, which TFDV computes in
    this process. Numbers of rows, missing values and values, least, largest and mean number, and whether a column is
    constant are those of all rows, which ExampleGen counted. Without `sample_rows`, or for Examples of another
    ExampleGen, it is TFX's StatisticsGen.

    Component `outputs` contains:
      - `statistics`: Channel of type `standard_artifacts.ExampleStatistics`, in TFDV's format. Its custom property
        `sample_rate_by_split` holds the share of the rows in the sample, as with TFX's.
    """

    SPEC_CLASS = StatisticsGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(self, examples: types.BaseChannel, sample_rows: int = 0) -> None:
        """Construct a StatisticsGen.

        Args:
          examples: a channel of `Examples`.
          sample_rows: least number of rows of each split in the sample, if it has as many; 0 takes all rows.
        """
        super().__init__(spec=spec_with_outputs(StatisticsGenSpec, examples=examples, sample_rows=sample_rows))

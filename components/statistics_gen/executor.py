"""The executor of StatisticsGen: TFX's own, or statistics of a sample with exact counts."""

from __future__ import annotations

import json
import os

from tfx.dsl.io import fileio
from tfx.types import artifact_utils

from components import progress
from components import spec_keys as keys
from components.base_executor import ComponentExecutor, Execution, files_below
from components.column_summary import COLUMNS_FACT, summaries_from_json
from components.compat import StatisticsExecutor
from components.statistics_gen.sampled_statistics import add_empty_columns, sampled_statistics

_FILE = "FeatureStats.pb"
_SAMPLE_RATES = "sample_rate_by_split"


class Executor(ComponentExecutor, StatisticsExecutor):
    """Computes statistics of each split."""

    COMPONENT = "StatisticsGen"

    def execute(self, execution: Execution) -> None:
        """Write the statistics of each split.

        Raises:
          DataError: a file of the examples is damaged.
        """
        sample_rows = int(execution.properties.get(keys.SAMPLE_ROWS) or 0)
        examples = artifact_utils.get_single_instance(execution.inputs[keys.EXAMPLES])
        is_known = examples.has_custom_property(COLUMNS_FACT)
        if not sample_rows or not is_known:
            given = {key: value for key, value in execution.properties.items() if key != keys.SAMPLE_ROWS}
            StatisticsExecutor.Do(self, execution.inputs, execution.outputs, given)
        if not is_known:
            return
        rows, columns = summaries_from_json(examples.get_string_custom_property(COLUMNS_FACT))
        statistics = execution.output(keys.STATISTICS)
        if not sample_rows:
            for split in artifact_utils.decode_split_names(examples.split_names):
                path = os.path.join(artifact_utils.get_split_uri([statistics], split), _FILE)
                add_empty_columns(path, rows[split], columns[split])
            return
        statistics.split_names = examples.split_names
        statistics.span = examples.span
        rates = {}
        for number, split in enumerate(artifact_utils.decode_split_names(examples.split_names)):
            progress.report("StatisticsGen", number, len(rows), unit="splits", detail=split)
            step = max(1, rows[split] // sample_rows)
            files = files_below(execution.split_folders(keys.EXAMPLES, split))
            found = sampled_statistics(files, rows[split], columns[split], step)
            folder = artifact_utils.get_split_uri([statistics], split)
            fileio.makedirs(folder)
            with fileio.open(os.path.join(folder, _FILE), "wb") as file:
                file.write(found.SerializeToString(deterministic=True))
            rates[split] = 1 / step
        # TFX's executor writes JSON within JSON too.
        statistics.set_json_value_custom_property(_SAMPLE_RATES, json.dumps(rates))

"""Reads the configuration of a pipeline: one YAML file, checked before anything heavy is imported.

`load_config` reads a file and returns a `PipelineConfig`. The configuration and its sections are frozen, and every
default is filled in. Importing this package loads neither TensorFlow nor TFX.
"""

from components.example_gen.row_selection import RowFilter, SplitByColumn, SplitByHash, SplitByTime, SplitLeaveOneOut
from components.example_gen.settings import Histories, Label
from components.example_gen.spans import Spans
from components.pusher.push_section import Push
from embedding_core.config import TableOverrides
from embedding_core.quality_rules import Threshold
from pipelines.config.loading import NoDataYetError, config_from_mapping, load_config
from pipelines.config.metrics import Evaluation
from pipelines.config.pipeline_config import Kubeflow, Model, PipelineConfig, Resources
from pipelines.config.sections import (
    Categorical,
    Data,
    Dense,
    Features,
    VocabularyEvolution,
    VocabularyLimits,
    data_files,
)

__all__ = [
    "Categorical",
    "Data",
    "Dense",
    "Evaluation",
    "Features",
    "Histories",
    "Kubeflow",
    "Label",
    "Model",
    "NoDataYetError",
    "PipelineConfig",
    "Push",
    "Resources",
    "RowFilter",
    "Spans",
    "SplitByColumn",
    "SplitByHash",
    "SplitByTime",
    "SplitLeaveOneOut",
    "TableOverrides",
    "Threshold",
    "VocabularyEvolution",
    "VocabularyLimits",
    "config_from_mapping",
    "data_files",
    "load_config",
]

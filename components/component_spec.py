"""Defines the keys and builds the specs of components; a key has the same artifact type wherever it occurs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, TypeVar

from tfx import types
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.artifacts import EmbeddingCheckpoint, TableConfigs, Vocabularies

# Defines the keys of component inputs, outputs, parameters and facts, as ML Metadata and pipelines contain them.

# Artifacts.
BASELINE_MODEL = "baseline_model"
BASE_CHECKPOINT = "base_checkpoint"
BASE_TABLE_CONFIGS = "base_table_configs"
BASE_TRANSFORM_GRAPH = "base_transform_graph"
BASE_VOCABULARIES = "base_vocabularies"
BLESSING = "blessing"
EARLIER_CHECKPOINT = "earlier_checkpoint"
EMBEDDING_CHECKPOINT = "embedding_checkpoint"
EVALUATION = "evaluation"
EXAMPLES = "examples"
MODEL = "model"
MODEL_BLESSING = "model_blessing"
MODEL_RUN = "model_run"
PUSHED_MODEL = "pushed_model"
SCHEMA = "schema"
STATISTICS = "statistics"
TABLE_CONFIGS = "table_configs"
TRANSFORM_GRAPH = "transform_graph"
VOCABULARIES = "vocabularies"
WARM_START = "warm_start"

# Parameters.
CODE_FINGERPRINT = "code_fingerprint"
CUSTOM_CONFIG = "custom_config"
DATA_FORMAT = "data_format"
DATA_SPANS = "data_spans"
DRAWN_FEATURES = "drawn_features"
EVAL_ARGS = "eval_args"
EVAL_CONFIG = "eval_config"
EVOLUTION = "evolution"
FEATURES = "features"
GATES = "gates"
KEEP_LAST = "keep_last"
MAX_BAD_ROW_RATE = "max_bad_row_rate"
MODEL_MODULE = "model_module"
NONFINITE = "nonfinite"
PARITY_ROWS = "parity_rows"
PARITY_SPLIT = "parity_split"
POLICY = "policy"
PREPROCESSING_FN = "preprocessing_fn"
PUSH_DESTINATION = "push_destination"
RANKING = "ranking"
REPUBLISH = "republish"
RESUME_DIR = "resume_dir"
ROWS_DTYPE = "rows_dtype"
RULES = "rules"
RUN_FN = "run_fn"
SAMPLE_ROWS = "sample_rows"
SEED = "seed"
SETTINGS = "settings"
SPLITS = "splits"
TABLES = "tables"
TOLERANCE = "tolerance"
TOPOLOGY = "topology"
TOP_K = "top_k"
TRAINING_STEPS = "training_steps"
TRAIN_ARGS = "train_args"
VOCABULARY_RULES = "vocabulary_rules"

# Custom properties of artifacts that several components read.
DATA_FACT = "data"
"""A JSON object on Examples that our ExampleGen wrote; see `components.example_gen.data_files.pieces_fact`."""


# Builds the specs of components; a key has the same artifact type in every spec, as an input or an output.

Spec = TypeVar("Spec", bound=ComponentSpec)

_ARTIFACT_TYPES: Mapping[str, type[types.Artifact]] = {
    BASELINE_MODEL: standard_artifacts.Model,
    BASE_CHECKPOINT: EmbeddingCheckpoint,
    BASE_TABLE_CONFIGS: TableConfigs,
    BASE_TRANSFORM_GRAPH: standard_artifacts.TransformGraph,
    BASE_VOCABULARIES: Vocabularies,
    BLESSING: standard_artifacts.ModelBlessing,
    EARLIER_CHECKPOINT: EmbeddingCheckpoint,
    EMBEDDING_CHECKPOINT: EmbeddingCheckpoint,
    EVALUATION: standard_artifacts.ModelEvaluation,
    EXAMPLES: standard_artifacts.Examples,
    MODEL: standard_artifacts.Model,
    MODEL_BLESSING: standard_artifacts.ModelBlessing,
    MODEL_RUN: standard_artifacts.ModelRun,
    PUSHED_MODEL: standard_artifacts.PushedModel,
    SCHEMA: standard_artifacts.Schema,
    STATISTICS: standard_artifacts.ExampleStatistics,
    TABLE_CONFIGS: TableConfigs,
    TRANSFORM_GRAPH: standard_artifacts.TransformGraph,
    VOCABULARIES: Vocabularies,
    WARM_START: EmbeddingCheckpoint,
}


def channels(*required: str, optional: Iterable[str] = ()) -> dict[str, ChannelParameter]:
    """Return the `INPUTS` or `OUTPUTS` of a spec."""
    return {
        **{key: ChannelParameter(type=_ARTIFACT_TYPES[key]) for key in required},
        **{key: ChannelParameter(type=_ARTIFACT_TYPES[key], optional=True) for key in optional},
    }


def parameters(
    required: Mapping[str, type], optional: Mapping[str, type] | None = None
) -> dict[str, ExecutionParameter]:
    """Return the `PARAMETERS` of a spec, from the type of each parameter."""
    return {
        **{key: ExecutionParameter(type=kind) for key, kind in required.items()},
        **{key: ExecutionParameter(type=kind, optional=True) for key, kind in (optional or {}).items()},
    }


def spec_with_outputs(spec_class: type[Spec], **given: object) -> Spec:
    """Return the spec with these inputs and parameters, and a new channel for each of its outputs."""
    outputs = {key: types.Channel(type=output.type) for key, output in spec_class.OUTPUTS.items()}
    spec: Spec = spec_class(**given, **outputs)
    return spec


class DeclaredComponent:
    """Makes the spec of a component from what its class declares; list it first among the bases.

    Attributes:
      PARAMETERS: execution parameters by key, from `parameters`.
      INPUTS: inputs by key, from `channels`.
      OUTPUTS: outputs by key, from `channels`.
    """

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]]
    INPUTS: ClassVar[dict[str, ChannelParameter]]
    OUTPUTS: ClassVar[dict[str, ChannelParameter]]
    SPEC_CLASS: ClassVar[type[ComponentSpec]]

    def __init_subclass__(cls) -> None:
        """Make the class of the spec; a subclass of a component keeps that of the component."""
        super().__init_subclass__()
        declared = {key: vars(cls)[key] for key in ("PARAMETERS", "INPUTS", "OUTPUTS") if key in vars(cls)}
        if declared:
            cls.SPEC_CLASS = type(f"{cls.__name__}Spec", (ComponentSpec,), declared)

    def __init__(self, **given: object) -> None:
        """Construct the component.

        Args:
          given: channels and values by key; None for those that are not given.
        """
        super().__init__(spec=spec_with_outputs(self.SPEC_CLASS, **given))  # type: ignore[call-arg]

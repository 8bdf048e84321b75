"""Builds the specs of components; a key has the same artifact type in every spec, as an input or an output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from tfx import types
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components import spec_keys as keys
from components.artifacts import EmbeddingCheckpoint, TableConfigs, Vocabularies

Spec = TypeVar("Spec", bound=ComponentSpec)

_ARTIFACT_TYPES: Mapping[str, type[types.Artifact]] = {
    keys.BASELINE_MODEL: standard_artifacts.Model,
    keys.BASE_CHECKPOINT: EmbeddingCheckpoint,
    keys.BASE_TABLE_CONFIGS: TableConfigs,
    keys.BASE_TRANSFORM_GRAPH: standard_artifacts.TransformGraph,
    keys.BASE_VOCABULARIES: Vocabularies,
    keys.BLESSING: standard_artifacts.ModelBlessing,
    keys.EARLIER_CHECKPOINT: EmbeddingCheckpoint,
    keys.EMBEDDING_CHECKPOINT: EmbeddingCheckpoint,
    keys.EVALUATION: standard_artifacts.ModelEvaluation,
    keys.EXAMPLES: standard_artifacts.Examples,
    keys.HEALTH_BLESSING: standard_artifacts.ModelBlessing,
    keys.MODEL: standard_artifacts.Model,
    keys.MODEL_BLESSING: standard_artifacts.ModelBlessing,
    keys.MODEL_RUN: standard_artifacts.ModelRun,
    keys.PREVIOUS_MODEL: standard_artifacts.PushedModel,
    keys.PUSHED_MODEL: standard_artifacts.PushedModel,
    keys.QUALITY_BLESSING: standard_artifacts.ModelBlessing,
    keys.SCHEMA: standard_artifacts.Schema,
    keys.SHADOW_BLESSING: standard_artifacts.ModelBlessing,
    keys.STATISTICS: standard_artifacts.ExampleStatistics,
    keys.TABLE_CONFIGS: TableConfigs,
    keys.TRANSFORM_GRAPH: standard_artifacts.TransformGraph,
    keys.VOCABULARIES: Vocabularies,
    keys.WARM_START: EmbeddingCheckpoint,
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

"""The VocabularyGen component."""

from __future__ import annotations

from typing import ClassVar

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.artifacts import Vocabularies
from components.vocabulary_gen.executor import (
    BASE_VOCABULARIES_KEY,
    EVOLUTION_KEY,
    EXAMPLES_KEY,
    FEATURES_KEY,
    MAX_BAD_ROW_RATE_KEY,
    RULES_KEY,
    SPLITS_KEY,
    TRANSFORM_GRAPH_KEY,
    VOCABULARIES_KEY,
    Executor,
)

__all__ = ["VocabularyGen", "VocabularyGenSpec"]


class VocabularyGenSpec(ComponentSpec):
    """Inputs, parameters and outputs of VocabularyGen."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        FEATURES_KEY: ExecutionParameter(type=str),
        RULES_KEY: ExecutionParameter(type=str),
        EVOLUTION_KEY: ExecutionParameter(type=str),
        SPLITS_KEY: ExecutionParameter(type=str),
        MAX_BAD_ROW_RATE_KEY: ExecutionParameter(type=float),
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        TRANSFORM_GRAPH_KEY: ChannelParameter(type=standard_artifacts.TransformGraph, optional=True),
        BASE_VOCABULARIES_KEY: ChannelParameter(type=Vocabularies, optional=True),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {VOCABULARIES_KEY: ChannelParameter(type=Vocabularies)}


class VocabularyGen(base_beam_component.BaseBeamComponent):
    """Counts the tokens of categorical features, all in one pass, and puts them in a total order.

    Tokens, order and files are described in `embedding_core.columns.tokens` and `embedding_core.vocabulary`.
    The same examples give the same bytes under any Beam runner.

    Component `outputs` contains:
      - `vocabularies`: Channel of type `Vocabularies`: `<name>.txt`, `<name>.counts.npy` and `<name>.json` of each
        vocabulary (with a base also `<name>.evolution.npy`), and `report/counting.json`, which names the rows that
        were set aside. Facts: "vocabularies" (digest, size, coverage and total_count of each; with a base also what
        became of its tokens, and per feature the share of rows and of tokens that it does not have), "rows",
        "bad_rows".
    """

    SPEC_CLASS = VocabularyGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        features: str,
        vocabularies: str = "{}",
        transform_graph: types.BaseChannel | None = None,
        base_vocabularies: types.BaseChannel | None = None,
        evolution: str = "{}",
        splits: str = '["train"]',
        max_bad_row_rate: float = 0.0,
    ) -> None:
        """Make the component.

        Args:
          examples: channel of `Examples`; TFRecord files of tf.Examples are read fast, other payloads by TFXIO.
          features: JSON list of {"name", "column", "vocabulary"}: column holds the fields of `ColumnConfig` but for
            dtype, which is found in the data, as the valency is where "multivalent" is null or left out; features
            that name one vocabulary share it, and the default is the feature's name.
          vocabularies: JSON object {vocabulary: {"min_count": least count, by default 1, "max_size": most tokens}}.
          transform_graph: channel of `TransformGraph`, for columns with `after_transform`.
          base_vocabularies: channel of `Vocabularies`: those of an earlier run, which the new ones come out of by
            the rule of `embedding_core.vocabulary.evolution`; without, only this run's data counts.
          evolution: JSON object with any of "mode" ("rerank", the default, or "append": rows of the earlier run stay
            where they are) and "expire_after" (runs after which a token expires; null, the default, for never).
          splits: JSON list of the splits that are counted.
          max_bad_row_rate: largest share of rows, from 0 to 1, that may be set aside because they do not parse.
        """
        super().__init__(
            spec=VocabularyGenSpec(
                **{
                    EXAMPLES_KEY: examples,
                    TRANSFORM_GRAPH_KEY: transform_graph,
                    BASE_VOCABULARIES_KEY: base_vocabularies,
                    EVOLUTION_KEY: evolution,
                    FEATURES_KEY: features,
                    RULES_KEY: vocabularies,
                    SPLITS_KEY: splits,
                    MAX_BAD_ROW_RATE_KEY: float(max_bad_row_rate),
                    VOCABULARIES_KEY: types.Channel(type=Vocabularies),
                }
            )
        )

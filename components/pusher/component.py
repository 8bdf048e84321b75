"""Defines EmbeddingPusher, the component that verifies the evaluated model and publishes it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec

from components import component_spec as keys
from components.component_spec import channels, parameters, spec_with_outputs
from components.pusher.executor import Executor
from components.pusher.push_section import FORMS, Push
from embedding_core.errors import ConfigError
from embedding_core.serving_config import TopK


class EmbeddingPusherSpec(ComponentSpec):
    """Inputs, parameters and outputs of EmbeddingPusher."""

    PARAMETERS = parameters(
        {keys.PUSH_DESTINATION: str, keys.TOLERANCE: float, keys.PARITY_ROWS: int, keys.PARITY_SPLIT: str},
        optional={
            keys.CODE_FINGERPRINT: str,
            keys.KEEP_LAST: int,
            keys.REPUBLISH: str,
            keys.ROWS_DTYPE: str,
            keys.TOP_K: str,
            **dict.fromkeys(FORMS, str),
        },
    )
    INPUTS = channels(
        keys.MODEL,
        keys.MODEL_RUN,
        keys.EXAMPLES,
        keys.VOCABULARIES,
        keys.TABLE_CONFIGS,
        optional=[keys.TRANSFORM_GRAPH, keys.SCHEMA, keys.MODEL_BLESSING],
    )
    OUTPUTS = channels(keys.PUSHED_MODEL)


def _spec_class(gates: Iterable[str]) -> type[ComponentSpec]:
    """Return the spec with an input for the blessing of each gate."""
    blessing = ChannelParameter(type=standard_artifacts.ModelBlessing, optional=True)
    inputs = {**EmbeddingPusherSpec.INPUTS, **dict.fromkeys(gates, blessing)}
    return type(EmbeddingPusherSpec.__name__, (EmbeddingPusherSpec,), {"INPUTS": inputs})


class EmbeddingPusher(base_component.BaseComponent):
    """Copies the evaluated model, verifies that it computes the same as the trained one, and publishes it.

    The model looks rows up on the CPU, contains its vocabularies but no slots, and needs only TensorFlow to
    load. If another form is to be served (`rows_dtype`, settings of `top_k`, a form of an optional room), it is
    exported, and compared with the evaluated model too. A fresh process loads it and scores rows of the eval split and
    generated edge cases. If the results differ by more than the tolerance, nothing is pushed. A server never
    sees an incomplete version.

    Component `outputs` contains:
      - `pushed_model`: Channel of type `standard_artifacts.PushedModel`: the model (nothing if it was not
        pushed). Custom properties: `pushed` (1 or 0), `pushed_destination`, `pushed_version`, `reason` (why it
        was not pushed), `parity` (the measured differences, JSON), `nonfinite_rows` (number of rows with NaN or
        infinity by table, JSON, if they are the reason), `model_digest`, `vocabularies_digest`, `vocabularies`
        (digest of each, JSON); and those of the form of the push.
    """

    SPEC_CLASS = EmbeddingPusherSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        model: types.BaseChannel,
        model_run: types.BaseChannel,
        examples: types.BaseChannel,
        vocabularies: types.BaseChannel,
        table_configs: types.BaseChannel,
        push_destination: str,
        transform_graph: types.BaseChannel | None = None,
        schema: types.BaseChannel | None = None,
        model_blessing: types.BaseChannel | None = None,
        push: Push | None = None,
        parity_rows: int = 1000,
        parity_split: str = "eval",
        republish: str | None = None,
        code_fingerprint: str | None = None,
        **gate_blessings: types.BaseChannel | None,
    ) -> None:
        """Construct an EmbeddingPusher.

        Args:
          model: a channel of `Model`, from EmbeddingTrainer: the model that was evaluated.
          model_run: a channel of `ModelRun`, from EmbeddingTrainer: checkpoint and `training.json`.
          examples: a channel of `Examples`.
          vocabularies: a channel of `Vocabularies`, from VocabularyGen.
          table_configs: a channel of `TableConfigs`, from TableConfigGen.
          push_destination: folder that holds the versions; a TensorFlow Serving `base_path`.
          transform_graph: a channel of `TransformGraph`, for dense features and transformed columns.
          schema: a channel of `Schema`; needed if dense features are raw columns, without a transform graph.
          model_blessing: a channel of `ModelBlessing`, from TFX's Evaluator; a model that is not blessed is not pushed.
          push: `tolerance` (absolute for values below 1, relative above), `keep_last` (number of versions to keep),
            `rows_dtype` (type of the served rows, or types by table), `top_k` (answers of a retrieval model) and the
            keys of optional rooms; its `destination` is ignored. None means `Push()`.
          parity_rows: number of rows that are compared, not counting edge cases.
          parity_split: the split that these rows are taken from.
          republish: any text. A new text makes the cache miss, so that a model is pushed again if its version was
            removed, or is not the newest any more.
          code_fingerprint: digest of the code that runs, so that the cache misses when the code changes.
          gate_blessings: channels of `ModelBlessing`, each named `<gate>_blessing`, such as `quality_blessing` from
            QualityGate and `health_blessing` from TableHealth. A model that one of them does not bless is not pushed,
            and the reasons of all are recorded.

        Raises:
          ConfigError: `parity_rows` is less than 1, or an argument is unknown.
        """
        for name in gate_blessings:
            if not name.endswith(f"_{keys.BLESSING}"):
                raise ConfigError(f"EmbeddingPusher has no argument {name!r}: name a gate's blessing <gate>_blessing.")
        if parity_rows < 1:
            raise ConfigError(f"`parity_rows` of EmbeddingPusher is {parity_rows!r}: it must be at least 1.")
        push = push or Push()
        spec = spec_with_outputs(
            _spec_class(gate_blessings),
            model=model,
            model_run=model_run,
            examples=examples,
            vocabularies=vocabularies,
            table_configs=table_configs,
            transform_graph=transform_graph,
            schema=schema,
            model_blessing=model_blessing,
            **gate_blessings,
            push_destination=push_destination,
            tolerance=push.tolerance,
            keep_last=push.keep_last,
            parity_rows=parity_rows,
            parity_split=parity_split,
            republish=republish,
            code_fingerprint=code_fingerprint,
            rows_dtype=None if push.rows_dtype == "float32" else json.dumps(push.to_mapping()[keys.ROWS_DTYPE]),
            top_k=None if push.top_k == TopK() else push.top_k.to_json(),
            **{key: form.to_json() for key in FORMS if (form := getattr(push, key)) is not None},
        )
        super().__init__(spec=spec)

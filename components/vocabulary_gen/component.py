"""Defines VocabularyGen, the component that counts the tokens of categorical features and makes vocabularies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec

from components import component_spec as keys
from components.component_spec import DeclaredComponent, channels, parameters
from components.vocabulary_gen.counting_plan import Evolution, VocabularyRule
from components.vocabulary_gen.executor import Executor
from embedding_core.errors import ConfigError
from embedding_core.schema import Json


class VocabularyGen(DeclaredComponent, base_beam_component.BaseBeamComponent):
    """Counts the tokens of categorical features, all in one pass, and puts them in a total order.

    Tokens, order and files are described in `embedding_core.columns` and `embedding_core.vocabulary`.
    The same examples give the same bytes under any Beam runner.

    Component `outputs` contains:
      - `vocabularies`: Channel of type `Vocabularies`: `<name>.txt`, `<name>.counts.npy` and `<name>.json` of each
        vocabulary (with a base also `<name>.evolution.npy`), and `report/counting.json`, which names the rows that
        were set aside. Facts: "vocabularies" (digest, size, coverage and total_count of each; with a base also the
        evolution of its tokens, and per feature the share of rows and of tokens that the base does not have),
        "rows", "bad_rows".
    """

    PARAMETERS = parameters(
        {
            keys.FEATURES: str,
            keys.VOCABULARY_RULES: str,
            keys.EVOLUTION: str,
            keys.SPLITS: str,
            keys.MAX_BAD_ROW_RATE: float,
        },
        optional={keys.CODE_FINGERPRINT: str},
    )
    INPUTS = channels(keys.EXAMPLES, optional=[keys.TRANSFORM_GRAPH, keys.BASE_VOCABULARIES])
    OUTPUTS = channels(keys.VOCABULARIES)
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        features: Sequence[Json],
        vocabularies: Mapping[str, VocabularyRule] | None = None,
        transform_graph: types.BaseChannel | None = None,
        base_vocabularies: types.BaseChannel | None = None,
        evolution: Evolution | None = None,
        splits: Sequence[str] = ("train",),
        max_bad_row_rate: float = 0.0,
        code_fingerprint: str | None = None,
    ) -> None:
        """Construct a VocabularyGen.

        Args:
          examples: channel of `Examples`: TFRecord files of tf.Examples.
          features: {"name", "column", "vocabulary"} of each. "column" has the fields of `ColumnConfig` except dtype,
            which is that of the data. The valency is also that of the data if "multivalent" is None or left out.
            Features that name the same vocabulary share it; the default is the feature's name.
          vocabularies: rule of each vocabulary; one without a rule keeps all tokens.
          transform_graph: channel of `TransformGraph`, for columns with `after_transform`.
          base_vocabularies: channel of `Vocabularies` of the previous run, which are merged with this run's counts by
            the rule of `embedding_core.vocabulary.vocabulary`; without them, only this run's data counts.
          evolution: how the new vocabularies evolve from the base; None is `Evolution()`.
          splits: the splits that are counted.
          max_bad_row_rate: largest share of rows, from 0 to 1, that may be set aside because they do not parse.
          code_fingerprint: digest of the code that runs, so that the cache misses when the code changes.

        Raises:
          ConfigError: no split is named.
        """
        if not splits:
            raise ConfigError('`splits` of VocabularyGen is empty: name at least one split, such as ["train"].')
        super().__init__(
            examples=examples,
            transform_graph=transform_graph,
            base_vocabularies=base_vocabularies,
            features=json.dumps(list(features)),
            vocabulary_rules=json.dumps({name: rule.counting_rule() for name, rule in (vocabularies or {}).items()}),
            evolution=json.dumps(evolution.evolution_rule() if evolution else {}),
            splits=json.dumps(list(splits)),
            max_bad_row_rate=float(max_bad_row_rate),
            code_fingerprint=code_fingerprint,
        )

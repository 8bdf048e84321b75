"""The executor of QualityGate: reads a run and its eval split, and writes a blessing with the figures."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx.utils import io_utils

from components import progress
from components.record import record_lineage
from components.run_inputs import inputs_of_run, same_run_digests
from embedding_core.evaluation import Check, RetrievalFigures, Rules, SplitCounts, count_split, judge, measure_retrieval
from embedding_core.training.finished_run import restore_run

__all__ = ["QUALITY_FILE", "Executor"]

MODEL_RUN_KEY = "model_run"
EXAMPLES_KEY = "examples"
VOCABULARIES_KEY = "vocabularies"
TABLE_CONFIGS_KEY = "table_configs"
TRANSFORM_GRAPH_KEY = "transform_graph"
SCHEMA_KEY = "schema"
RULES_KEY = "rules"
SEED_KEY = "seed"
CODE_FINGERPRINT_KEY = "code_fingerprint"
BLESSING_KEY = "blessing"
QUALITY_FILE = "quality.json"


class Executor(base_executor.BaseExecutor):
    """Counts, measures and judges."""

    def Do(  # noqa: N802
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Write `quality.json`, and bless the model if every rule is met.

        Args:
          input_dict: `model_run`, `examples`, `vocabularies`, `table_configs`, and perhaps `transform_graph` and
            `schema`.
          output_dict: `blessing`, one artifact.
          exec_properties: `rules` and `seed`.

        Raises:
          EmbeddingError: an input is damaged, or of another run.
        """
        blessing = artifact_utils.get_single_instance(output_dict[BLESSING_KEY])
        model_run = artifact_utils.get_single_uri(input_dict[MODEL_RUN_KEY])
        counts, retrieval = _measure(input_dict, model_run, int(exec_properties.get(SEED_KEY) or 0))
        checks = judge(counts, retrieval, Rules(**json.loads(exec_properties[RULES_KEY])))
        fileio.makedirs(blessing.uri)
        with fileio.open(os.path.join(blessing.uri, QUALITY_FILE), "w") as file:
            file.write(json.dumps(_figures(counts, retrieval, checks), indent=1))
        missed = [check.reason for check in checks if not check.met]
        blessing.set_int_custom_property("blessed", 0 if missed else 1)
        blessing.set_string_custom_property("reason", " ".join(missed))
        record_lineage("QualityGate", input_dict, output_dict)


def _measure(
    input_dict: Mapping[str, list[types.Artifact]], model_run: str, seed: int
) -> tuple[SplitCounts, RetrievalFigures | str]:
    run = restore_run(model_run)
    folders = {
        key: artifact_utils.get_single_uri(input_dict[key])
        for key in (VOCABULARIES_KEY, TABLE_CONFIGS_KEY, TRANSFORM_GRAPH_KEY, SCHEMA_KEY)
        if input_dict.get(key)
    }
    same_run_digests(run.description, model_run, folders[VOCABULARIES_KEY], folders[TABLE_CONFIGS_KEY])
    inputs = inputs_of_run(
        run.description,
        folders[VOCABULARIES_KEY],
        transform_graph=folders.get(TRANSFORM_GRAPH_KEY),
        schema=folders.get(SCHEMA_KEY),
    )
    train, held_out = (_files(input_dict, split) for split in ("train", "eval"))
    progress.report("QualityGate", 0, 2, unit="steps", detail="counting the eval split")
    counts = count_split(inputs, held_out)
    progress.report("QualityGate", 1, 2, unit="steps", detail="measuring retrieval")
    return counts, measure_retrieval(run, inputs, train_files=train, eval_files=held_out, seed=seed)


def _files(input_dict: Mapping[str, list[types.Artifact]], split: str) -> list[str]:
    folders = artifact_utils.get_split_uris(input_dict[EXAMPLES_KEY], split)
    return sorted(name for folder in folders for name in fileio.glob(io_utils.all_files_pattern(folder)))


def _figures(counts: SplitCounts, retrieval: RetrievalFigures | str, checks: Sequence[Check]) -> dict[str, Any]:
    measured = not isinstance(retrieval, str)
    return {
        "eval_split": {**dataclasses.asdict(counts), "negatives": counts.negatives},
        "retrieval": dataclasses.asdict(retrieval) if dataclasses.is_dataclass(retrieval) else None,
        "retrieval_note": "" if measured else retrieval,
        "checks": [check.to_dict() for check in checks],
    }

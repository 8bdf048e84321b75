"""Defines the executor of QualityGate, which reads a run and its splits, and writes a blessing with the figures."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from tfx.dsl.components.base import base_executor
from tfx.dsl.io import fileio

from components import component_spec as keys
from components import progress
from components.base_executor import ComponentExecutor, Execution, files_below
from components.run_inputs import same_run_digests, sources_of_run
from embedding_core.evaluation import (
    Check,
    JudgedModel,
    LabelScore,
    RetrievalFigures,
    SplitCounts,
    count_and_predict,
    judge,
    measure_retrieval,
    own_checks,
    score_labels,
)
from embedding_core.model_inputs import is_two_tower
from embedding_core.quality_rules import GATE_METRICS, PREDICTIONS_FILE, QUALITY_FILE, Rules
from embedding_core.schema import Json
from embedding_core.training.finished_run import restore_run
from embedding_core.training.training_inputs import Batch


class Executor(ComponentExecutor, base_executor.BaseExecutor):
    """Measures the eval split, the model beside a constant and its retrieval, and applies the quality rules."""

    COMPONENT = "QualityGate"

    def execute(self, execution: Execution) -> None:
        """Write `quality.json` and the predictions for the eval split, and bless the model if every rule is met.

        Raises:
          EmbeddingError: an input is damaged, or from another run; or a gate of the user fails.
        """
        rules = Rules.from_mapping(execution.json(keys.RULES))
        model = _judged_model(execution)
        counts, labels, retrieval = _measure(execution, rules, model)
        judged = judge(counts, retrieval, rules, labels, model.inputs.tasks)
        checks = [*judged, *own_checks(execution.json(keys.GATES) or (), model)]
        missed = [check.reason for check in checks if not check.met]
        execution.bless(
            blessed=not missed,
            reason=" ".join(missed),
            file=QUALITY_FILE,
            figures=_figures(counts, labels, retrieval, checks),
        )


def _judged_model(execution: Execution) -> JudgedModel:
    model_run, vocabularies = execution.uri(keys.MODEL_RUN), execution.uri(keys.VOCABULARIES)
    run = restore_run(model_run)
    same_run_digests(run.description, model_run, vocabularies, execution.uri(keys.TABLE_CONFIGS))
    sources = sources_of_run(run.description, **execution.given_uris(keys.TRANSFORM_GRAPH, keys.SCHEMA))
    inputs = sources.inputs(vocabularies, run.description.vocabularies)
    return JudgedModel(run=run, inputs=inputs, eval_files=files_below(execution.split_folders(keys.EXAMPLES, "eval")))


def _measure(
    execution: Execution, rules: Rules, model: JudgedModel
) -> tuple[SplitCounts, list[LabelScore], RetrievalFigures | str]:
    run, inputs, held_out = model.run, model.inputs, model.eval_files
    train = files_below(execution.split_folders(keys.EXAMPLES, "train"))
    execution.begin_rows("QualityGate", "eval")
    counts, predictions = count_and_predict(run, inputs, held_out, _advance)
    with fileio.open(os.path.join(execution.output(keys.BLESSING).uri, PREDICTIONS_FILE), "wb") as file:
        file.write(predictions.to_bytes())
    labels = score_labels(run, inputs, predictions, train_files=train)
    judging = "measuring retrieval" if is_two_tower(run.model) else "applying the rules"
    progress.advance("QualityGate", 0, judging)
    seed = int(execution.properties.get(keys.SEED) or 0)
    retrieval = measure_retrieval(
        run,
        inputs,
        train_files=train,
        eval_files=held_out,
        protocol=rules.protocol,
        metrics=dict.fromkeys([*GATE_METRICS, *rules.retrieval]),
        seed=seed,
    )
    return counts, labels, retrieval


def _advance(batch: Batch) -> None:
    progress.advance("QualityGate", int(batch["rows"]), "predicting the eval split")


def _figures(
    counts: SplitCounts, labels: Sequence[LabelScore], retrieval: RetrievalFigures | str, checks: Sequence[Check]
) -> Json:
    measured = not isinstance(retrieval, str)
    return {
        "eval_split": dataclasses.asdict(counts),
        "labels": [dataclasses.asdict(score) for score in labels],
        "retrieval": dataclasses.asdict(retrieval) if dataclasses.is_dataclass(retrieval) else None,
        "retrieval_note": "" if measured else retrieval,
        "checks": [check.to_dict() for check in checks],
    }

"""Reads the figures of a run from its artifacts, for its report, and writes a request to the version that it pushed."""

from __future__ import annotations

import datetime
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from ml_metadata import MetadataStore
from tensorflow.core.protobuf import saved_model_pb2

from components.artifact_files import read_embedding_config
from components.component_spec import DATA_FACT
from components.example_gen.spans import Gaps
from components.run_inputs import sources_of_run
from components.transform_graph import range_problems
from embedding_core.checkpoint.dense import DENSE, read_dense
from embedding_core.checkpoint.remap import REPORT as REMAP_REPORT
from embedding_core.config import EmbeddingConfig
from embedding_core.display import shown_token
from embedding_core.evaluation import Predictions
from embedding_core.quality_rules import PREDICTIONS_FILE
from embedding_core.rooms import hooks
from embedding_core.serving import columns_of, named_inputs, public_rows
from embedding_core.storage import folder_digests, json_digest, open_file, read_json
from embedding_core.tasks import prediction_name
from embedding_core.training.finished_run import RunDescription
from embedding_core.training.row_stream import batches_once
from embedding_core.training_config import Training
from embedding_core.vocabulary import Vocabulary, load_vocabularies
from pipelines.config import PipelineConfig
from pipelines.lineage.graph import Node, open_store, outputs_of, read_node, reread_graph, started_from, trace
from pipelines.pipeline.fingerprint import preprocessing_fingerprint
from pipelines.report.baselines import Compared, Score, compare_with_baselines
from pipelines.report.evaluation_results import (
    check_rows,
    column_figures,
    feature_figures,
    gate_figures,
    judged_metrics,
    label_figures,
    output_of,
    recall_curves,
    retrieval_note,
    sliced_metrics,
)
from pipelines.report.run_report import HIGHER_IS_BETTER, METRICS, Figures, NodeRun, Report, RunResult
from pipelines.report.verdict import FLAT, LESS_OVERFITTING, STOPPING, figure_text, rise

_MOST_FREQUENT = 5
_BASELINES = "baselines.json"
"""File in the work_dir that keeps the scores of the baselines."""
_MADE_IN_THIS_RUN = "made in this run"
_KEPT = "made in a previous run on the same rows"
_FEWEST_POINTS = 2  # of a curve that rises or falls
_BYTES = ("table_bytes", "slot_bytes")


def collect_report(
    config: PipelineConfig,
    runs: Sequence[NodeRun],
    pushed: int,
    result: RunResult,
    changed: Sequence[str],
    reports: str,
) -> Report:
    """Read the figures of a finished run and measure the baselines.

    If all nodes come from the cache, the scores of the baselines are taken from the served version's report.

    Args:
      config: configuration of the pipeline.
      runs: the node runs, the pusher's last.
      pushed: id of the PushedModel of the version that is served, or of this run if its model was refused.
      result: what the run did.
      changed: dotted keys of the settings that `--set` changed.
      reports: folder of the reports of previous runs, by version.
    """
    store = open_store(config.metadata_path)
    lineage = trace(store, pushed, reread_graph(store, config.metadata_path, config.name))
    by_type = {node.type: node for node in reversed(lineage.values())}
    vocabularies = load_vocabularies(by_type["components.Vocabularies"].uri)
    embedding = read_embedding_config(by_type["components.TableConfigs"].uri)
    run = RunDescription.load(by_type["ModelRun"].uri)
    history = read_json(os.path.join(by_type["ModelRun"].uri, "history.json"))
    eval_files = split_files(by_type["Examples"], "eval")
    gates = gate_figures(store, runs)
    quality, health = gates.pop("QualityGate"), gates.pop("TableHealth", None)
    compared = known_quality(reports, runs, result.version, config.evaluation.baselines)
    if compared is None:
        predictions = _predictions(output_of(store, runs, "QualityGate", "ModelBlessing"))
        measured = _measured(config, by_type, run, predictions, vocabularies)
        compared = _compared(config, measured, history, retrieves=quality["retrieval"] is not None)
    evaluation = output_of(store, runs, "Evaluator", "ModelEvaluation")
    nodes = [_node(store, run) for run in runs]
    return Report(
        name=config.name,
        finished=datetime.datetime.now().isoformat(timespec="seconds"),
        seconds=sum(run.seconds for run in runs),
        seconds_with_cache=sum(node["made_in"] for node in nodes),
        nodes=nodes,
        push=result,
        query=_request_text(result, lineage[pushed], run, by_type, eval_files) if result.pushed else "",
        **compared,
        eval_digest=eval_digest(config, by_type["Examples"]),
        evaluation=[
            *judged_metrics(config, evaluation, quality),
            *check_rows(*gates.values()),
            *_own_figures(history, run.step),
        ],
        slices=sliced_metrics(evaluation),
        retrieval=quality["retrieval"],
        retrieval_note=retrieval_note(quality),
        gates=gates,
        health=health,
        configuration=config.to_mapping(),
        changed=changed,
        curves={**_curves(history), **recall_curves(quality["retrieval"])},
        training_note=_training_note(history),
        chosen_by_early_stopping=_chosen_by_early_stopping(history),
        parity=_parity(lineage[pushed]),
        tables=_tables(by_type["components.TableConfigs"], embedding),
        vocabularies=[_vocabulary(vocabulary) for vocabulary in vocabularies.values()],
        drift=[row for vocabulary in vocabularies.values() for row in _drift(vocabulary)],
        further=_further(by_type["components.TableConfigs"].uri),
        labels=label_figures(
            by_type["ExampleStatistics"].uri, {name: label.column for name, label in config.targets.items()}, quality
        ),
        columns=column_figures(by_type["ExampleStatistics"].uri),
        features=feature_figures(vocabularies.values(), quality),
        data=_data(by_type["Examples"]) | _line_breaks(vocabularies.values()) | _dense_notes(by_type["ModelRun"]),
        warm_start=_warm_start(lineage, history),
    )


def _predictions(blessing: str) -> Predictions:
    with open_file(os.path.join(blessing, PREDICTIONS_FILE)) as file:
        return Predictions.from_bytes(file.read())


def _further(table_configs: str) -> dict[str, Figures]:
    figures = {room.NAME: room.figures(table_configs) for room in hooks("pipelines", "report_section")}
    return {name: of_room for name, of_room in figures.items() if of_room is not None}


def _measured(
    config: PipelineConfig,
    by_type: Mapping[str, Node],
    run: RunDescription,
    predictions: Predictions,
    vocabularies: Mapping[str, Vocabulary],
) -> Compared:
    graph, tokens = by_type["TransformGraph"].uri, by_type["components.Vocabularies"].uri
    return compare_with_baselines(
        sources_of_run(run, transform_graph=graph).inputs(tokens, run.vocabularies),
        train_files=split_files(by_type["Examples"], "train"),
        eval_files=split_files(by_type["Examples"], "eval"),
        predictions=predictions,
        candidate=_candidate(config.training),
        counts={name: vocabulary.counts for name, vocabulary in vocabularies.items()},
        asked=config.evaluation.baselines,
        kept=os.path.join(config.work_dir, _BASELINES),
        made_by=folder_digests(graph),
    )


def _compared(config: PipelineConfig, measured: Compared, history: Figures, *, retrieves: bool) -> dict[str, Any]:
    """Return the scores of model and baselines, as fields of a report."""
    scores = measured.scores
    note = _quality_note(config, scores, retrieves=retrieves)
    return {
        "metric_names": list(dict.fromkeys(name for score in scores for name in score.metrics)),
        "quality": [{"scorer": score.shown, "metrics": dict(score.metrics)} for score in scores],
        "eval_rows": measured.rows,
        "quality_note": note.replace(_MADE_IN_THIS_RUN, _KEPT) if measured.is_kept else note,
        "quality_warnings": better_baselines(scores, history),
    }


def known_quality(reports: str, runs: Sequence[NodeRun], version: str, asked: Sequence[str]) -> dict[str, Any] | None:
    """Return the scores of model and baselines from the report of a version if all nodes were cached; else None.

    A report with other baselines than those that are asked for is not used.
    """
    if not version or any(run.state != "cached" for run in runs):
        return None
    try:
        known = read_json(os.path.join(reports, version, "report.json"))
        if known["configuration"]["evaluation"]["baselines"] != list(asked):
            return None
        note = known["quality_note"].replace(_MADE_IN_THIS_RUN, f"made in the run of version {version}")
        warnings = known.get("quality_warnings", ())
        same = {key: known[key] for key in ("metric_names", "quality", "eval_rows")}
        return {**same, "quality_note": note, "quality_warnings": warnings}
    except (OSError, ValueError, KeyError, TypeError):  # deleted, or of a release that wrote other figures
        return None


def _candidate(training: Training) -> str | None:
    """Return the feature that identifies a candidate; None if the training makes no negatives."""
    source = training.softmax or training.negatives
    return None if source is None else source.feature


def _quality_note(config: PipelineConfig, scores: Sequence[Score], *, retrieves: bool) -> str:
    notes = [f"The baselines were {_MADE_IN_THIS_RUN}, from the same features."]
    notes += [score.note for score in scores if score.note]
    if all(score.metrics.get(METRICS[0], 0.0) is None for score in scores):
        judge = ": Recall@k judges" if retrieves else ""
        notes.append(f"All rows have one label, so AUC and log loss cannot be computed{judge}.")
    if config.training.negatives is not None:
        notes.append("Negatives were drawn while training, so the predicted level is theirs: compare the order (AUC).")
    return " ".join(notes)


def better_baselines(scores: Sequence[Score], history: Figures) -> list[str]:
    """Write a sentence for each baseline that beats the model on a metric, and what its curves advise.

    Args:
      scores: the scores of a label, the model's first, then those of the next label.
      history: `history.json` of the ModelRun.
    """
    better = [text for label in dict.fromkeys(score.label for score in scores) for text in _better_for(label, scores)]
    return [f"{text} {_advice(history)}" for text in better]


def _better_for(label: str, scores: Sequence[Score]) -> Iterator[str]:
    model, *baselines = [score for score in scores if score.label == label]
    of_label = f" for {label!r}" if label else ""
    for baseline in baselines:
        lost = [
            f"its {name} is {figure_text(value)}, that of the baseline {figure_text(of_one)}"
            for name, value in model.metrics.items()
            if value is not None and (of_one := baseline.metrics.get(name)) is not None
            if (of_one > value if name in HIGHER_IS_BETTER else of_one < value)
            if figure_text(of_one) != figure_text(value)
        ]
        if lost:
            yield f"This model is worse{of_label} than the {baseline.scorer}: {'; '.join(lost)}."


def _advice(history: Figures) -> str:
    """Say what the curve of the eval loss advises if a baseline is better."""
    curve = _points(history["evals"], "loss")
    if len(curve) < _FEWEST_POINTS:
        return f"Its eval loss was computed {len(curve)} times: evaluate more often, to see whether it still falls."
    if rose := rise(curve):
        remedies = LESS_OVERFITTING if _chosen_by_early_stopping(history) else f"{STOPPING}, {LESS_OVERFITTING}"
        return f"Its eval loss {rose}: longer training does not help; use {remedies}."
    if curve[-1][1] < curve[-2][1] * (1 - FLAT):
        return "Its eval loss was still falling at the last step: train longer, or with a higher learning rate."
    return "Its eval loss no longer changed: longer training does not help; use other features, dims or rates."


def split_files(examples: Node, split: str) -> list[str]:
    """List the files of a split."""
    folder = os.path.join(examples.uri, f"Split-{split}")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def eval_digest(config: PipelineConfig, examples: Node) -> str:
    """Return a digest of what the rows of the eval split, their labels, weights and queries are chosen by.

    Features do not change it.

    Args:
      config: configuration of the pipeline.
      examples: the Examples; "" is returned if they do not record their data, as those of other ExampleGens.
    """
    data: Figures = examples.facts.get(DATA_FACT) or {}
    files = data.get("eval") or data.get("pieces") or ()
    chosen: dict[str, Any] = {
        "files": sorted(piece["sha256"] for piece in files),
        "rows": (examples.facts.get("ingest") or {}).get("splits", {}).get("eval"),
        "labels": {
            name: [label.column, label.positive, label.above, label.key, label.kind]
            for name, label in config.targets.items()
        },
        **{key: config.to_mapping()[key] for key in ("row_filters", "sample_weight", "split")},
        "queries": config.evaluation.protocol.to_mapping(),
    }
    if any(label.key is not None for label in config.targets.values()):
        chosen["preprocessing"] = [config.preprocessing_fn, preprocessing_fingerprint(config)]
    if config.split.by == "leave_one_out":
        chosen["histories"] = config.to_mapping()["data"]["histories"]
    return json_digest(chosen) if files else ""


def _node(store: MetadataStore, run: NodeRun) -> Figures:
    """Return the figures of a node run; `made_in` is the time that its outputs took, maybe in a previous run."""
    made_in = run.seconds
    if run.state == "cached" and run.execution is not None:
        producers = [read_node(store, output).producer for output in outputs_of(store, run.execution)[:1]]
        made_in = max((producer.seconds or 0.0 for producer in producers if producer is not None), default=0.0)
    known = {"node": run.node, "state": run.state, "seconds": run.seconds, "execution": run.execution}
    return {**known, "made_in": made_in}


def _points(entries: Sequence[Figures], key: str) -> list[tuple[float, float]]:
    return [(entry["step"], entry[key]) for entry in entries if entry.get(key) is not None]


def _curves(history: Figures) -> dict[str, dict[str, list[tuple[float, float]]]]:
    return {
        "loss": {
            "train": _points(history["train"], "loss"),
            "validation": _points(history.get("validations", ()), "loss"),
            "eval": _points(history["evals"], "loss"),
        },
        "auc": {"validation": _points(history.get("validations", ()), "auc"), "eval": _points(history["evals"], "auc")},
        **{
            name: {
                part: [
                    (entry["step"], value)
                    for entry in entries
                    if (value := entry.get("metrics", {}).get(name)) is not None
                ]
                for part, entries in (("validation", history.get("validations", ())), ("eval", history["evals"]))
            }
            for name in _own_metrics(history)
        },
    }


def _own_metrics(history: Figures) -> list[str]:
    """Return the names of the figures that the model's module computes."""
    return list(dict.fromkeys(name for entry in history["evals"] for name in entry.get("metrics", ())))


def _own_figures(history: Figures, step: int) -> list[Figures]:
    """Return the figures that the model's module computed for the exported state, as rows of `evaluation`."""
    # Runs of previous releases have no "final".
    final: Figures = history.get("final") or next((entry for entry in history["evals"] if entry["step"] == step), {})
    return [
        {"metric": name, "value": value, "bound": "", "outcome": "no bound"}
        for name, value in final.get("metrics", {}).items()
    ]


def _training_note(history: Figures) -> str:
    known = dict(history["facts"])
    median = known.pop("rows_per_second", None)
    facts = ", ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in known.items() if _plain(value))
    rate = f"; {median:,.0f} rows/s (median)" if median else ""
    return f"{history['seconds']:.1f} s of training{rate}; {facts}{_stopping_note(history)}"


def _chosen_by_early_stopping(history: Figures) -> bool:
    """Return whether early stopping chose the step: rows were held back, and it was not without effect."""
    facts = history["facts"]
    return bool(facts.get("validation_rows")) and not facts.get("early_stopping")


def _stopping_note(history: Figures) -> str:
    """Say how the step was chosen; empty without early stopping."""
    rows, without_effect = history["facts"].get("validation_rows"), history["facts"].get("early_stopping")
    if not rows and not without_effect:
        return ""
    chosen = f"Early stopping chose the step by {rows:,} rows of the train split that were held back."
    trained = " The chosen state was then trained on them, too." if history["facts"].get("validation_steps") else ""
    return f". {without_effect or chosen}{trained}"


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parity(node: Node) -> list[Figures]:
    figures = node.facts.get("parity") or {}
    return [
        {
            "name": name,
            "difference": float(item["max_abs"]),
            "mean": float(item["mean_abs"]),
            "tolerance": item.get("tolerance", figures["tolerance"]),
            "rows": item["rows"],
        }
        for name, item in figures.get("differences", {}).items()
    ]


def _tables(node: Node, config: EmbeddingConfig) -> list[Figures]:
    plan = read_json(os.path.join(node.uri, "plan.json"))["tables"]
    return [
        {
            "name": table.name,
            "combiner": table.combiner,
            "optimizer": type(table.optimizer).__name__ if table.optimizer else "default",
            **plan[table.name],
        }
        for table in sorted(config.tables, key=lambda table: -sum(plan[table.name][key] for key in _BYTES))
    ]


def _warm_start(lineage: Mapping[int, Node], history: Figures) -> Figures | None:
    """Return what the warm start kept of the previous tables and dense part; None for a cold start."""
    node = started_from(lineage)
    if node is None:
        return None
    dense = history["facts"].get("warm_start")
    return {"step": node.facts["step"], "dense": dense, **read_json(os.path.join(node.uri, REMAP_REPORT))}


def _dense_notes(run: Node) -> dict[str, str]:
    """Describe the problems of dense features, by the key that the report's table of the data shows."""
    dense = read_dense(os.path.join(run.uri, DENSE))
    problems = {} if dense is None else range_problems(dense.ranges)
    return {f"dense feature {name}": text for name, text in problems.items()}


def _vocabulary(vocabulary: Vocabulary) -> Figures:
    order = np.argsort(-vocabulary.counts, kind="stable")[:_MOST_FREQUENT]  # an extended vocabulary may be unsorted
    return {
        "name": vocabulary.name,
        "size": len(vocabulary),
        "distinct": vocabulary.distinct,
        "unrepresentable": vocabulary.unrepresentable,
        "coverage": vocabulary.coverage,
        "digest": vocabulary.digest,
        "sample": [
            shown_token(token.as_py(), private=vocabulary.private) for token in vocabulary.tokens.take(pa.array(order))
        ],
        "evolution": None if vocabulary.evolution is None else vocabulary.evolution.facts(),
    }


def _drift(vocabulary: Vocabulary) -> list[Figures]:
    """Return by feature the shares of rows and tokens that the base vocabulary lacks; empty without a base."""
    drift = {name: summary.drift for name, summary in vocabulary.features.items()}
    return [{"feature": name, "vocabulary": vocabulary.name, **shares} for name, shares in drift.items() if shares]


def _data(node: Node) -> dict[str, str]:
    ingest = node.facts.get("ingest") or {}
    rows = {
        "files": ingest.get("files"),
        "rows read": ingest.get("rows_read"),
        **{f"rows left out by {item['filter']}": item["rows"] for item in ingest.get("filtered", ())},
        "rows in neither split": ingest.get("in_neither_split"),
        "rows with too short a history": ingest.get("history_too_short"),
        "events in no history, for lack of a value": ingest.get("in_no_history"),
        "rows set aside as bad": ingest.get("set_aside", {}).get("rows"),
        **{f"rows of the {split} split": count for split, count in ingest.get("splits", {}).items()},
        **{
            f"values of {name} written as {form}; 3 and 3.0 differ (`data.whole_numbers` joins them)": n
            for name, forms in ingest.get("mixed_whole_numbers", {}).items()
            for form, n in forms.items()
        },
    }
    shown = {name: f"{count:,}" for name, count in rows.items() if count is not None}
    gaps = ingest.get("spans_without_file") or {}
    if gaps.get("count"):
        shown["spans without a file"] = str(Gaps(gaps["count"], tuple(gaps["first"])))
    if ingest.get("files_ignored"):
        shown["files that match and are ignored, such as"] = ", ".join(map(os.path.basename, ingest["files_ignored"]))
    return shown


def _line_breaks(vocabularies: Iterable[Vocabulary]) -> dict[str, str]:
    """Count the tokens that a text file cannot hold, for each vocabulary that has some."""
    counts = {vocabulary.name: vocabulary.unrepresentable for vocabulary in vocabularies if vocabulary.unrepresentable}
    return {
        f"tokens of {name} with a line break or NUL, which are looked up as unknown": f"{count:,}"
        for name, count in counts.items()
    }


# Writes Python code that sends a request to a pushed version, with the names and types of its inputs.
#
# The code runs unchanged. Its values are those of rows of the eval split; values of private columns are made up.

_REQUEST_ROWS = 2
_CHOSEN_FROM = 100
_ANSWERS = {"top_k": ("tokens", "scores")}


def _request_text(
    result: RunResult, push: Node, run: RunDescription, by_type: Mapping[str, Node], eval_files: Sequence[str]
) -> str:
    """Write Python code that sends two rows to a version: it needs only TensorFlow.

    It asks for the best candidates of a model that retrieves, and for the predictions of any other.

    Args:
      result: what the run did.
      push: the PushedModel of the version, of which optional rooms may write notes.
      run: `training.json` of the ModelRun.
      by_type: artifacts of the run, by type.
      eval_files: files of the eval split.
    """
    graph, folder = by_type["TransformGraph"].uri, by_type["components.Vocabularies"].uri
    named = shown_inputs(run, graph, folder, eval_files)
    signature, wanted = _signature(os.path.join(by_type["Model"].uri, "Format-Serving", "saved_model.pb"))
    given = {name: value for name, value in named.items() if name in wanted}
    answers = _ANSWERS.get(signature, [prediction_name(run.tasks, task) for task in run.tasks])
    floats = [value for value in given.values() if value.dtype == np.float32]
    imported = sorted({str(abs(number)) for value in floats for number in value[~np.isfinite(value)].tolist()})
    notes = "".join(room.request_note(push.facts) for room in hooks("pipelines", "run"))
    return notes + "\n".join(
        [
            *([f"from math import {', '.join(imported)}"] if imported else []),
            "import tensorflow as tf",
            f"model = tf.saved_model.load({result.destination!r})",
            "inputs = {",
            *(f'    "{name}": tf.constant({_literal(value)}),  # {_type_text(value)}' for name, value in given.items()),
            "}",
            f'answer = model.signatures["{signature}"](**inputs)',
            *(f'print(answer["{name}"].numpy())' for name in answers),
        ]
    )


def shown_inputs(
    run: RunDescription, transform_graph: str, vocabularies: str, eval_files: Sequence[str]
) -> dict[str, npt.NDArray[Any]]:
    """Return the named tensors of rows of the eval split that a request may show.

    Args:
      run: `training.json` of the ModelRun.
      transform_graph: folder of the TransformGraph.
      vocabularies: folder of the Vocabularies.
      eval_files: files of the eval split.
    """
    dense = sources_of_run(run, transform_graph=transform_graph).of_features()
    files = {name: os.path.join(vocabularies, f"{name}.txt") for name in run.vocabularies}
    rows: list[bytes] = next((rows.numpy().tolist() for _, rows in batches_once(eval_files, _CHOSEN_FROM)), [])
    return named_inputs(columns_of(run.config, dense), public_rows(run.config, dense, files, rows, _REQUEST_ROWS))[0]


def _signature(saved_model: str) -> tuple[str, Collection[str]]:
    """Return the signature of a SavedModel that a request asks, and the names of its inputs."""
    with open(saved_model, "rb") as file:
        signatures = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs[0].signature_def
    name = next((name for name in _ANSWERS if name in signatures), "raw")
    return name, signatures[name].inputs.keys()


def _literal(value: npt.NDArray[Any]) -> str:
    """Write the arguments of `tf.constant`: the array as a literal, and its dtype if it is neither float32 nor text."""
    if value.dtype == object:
        return repr([_decoded(item) for item in value.tolist()])
    if value.dtype == np.float32:
        return repr(json_values(value))
    return f"{value.tolist()!r}, tf.{value.dtype.name}"


def json_values(value: npt.NDArray[Any]) -> Any:
    """Return the values of an array, float32 with the digits that tell it from other float32."""
    return (value.astype(str).astype(np.float64) if value.dtype == np.float32 else value).tolist()


def _decoded(value: Any) -> Any:
    """Decode the bytes that are UTF-8, also in lists; leave other bytes as they are."""
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _type_text(value: npt.NDArray[Any]) -> str:
    shape = ", ".join(["rows", *("values" for _ in value.shape[1:])])
    return f"{'string' if value.dtype == object else value.dtype.name} [{shape}]"

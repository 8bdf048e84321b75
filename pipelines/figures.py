"""The figures of a run, read from its artifacts: what `report.py` shows."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embedding_core.checkpoint.remap import REPORT as REMAP_REPORT
from embedding_core.config import EmbeddingConfig
from embedding_core.display import shown_token
from embedding_core.vocabulary import Vocabulary, drift_of, load_vocabularies
from pipelines.baselines import Score, compare_with_baselines, inputs_of_run
from pipelines.config import PipelineConfig
from pipelines.evaluation import missed_thresholds
from pipelines.lineage import Node, open_store, outputs_of, trace
from pipelines.report import Report
from pipelines.runner import NodeRun

__all__ = ["collect_report"]

_MOST_FREQUENT = 5


def collect_report(config: PipelineConfig, runs: Sequence[NodeRun], pushed: int) -> Report:
    """Read the figures of a finished run and measure the baselines.

    Args:
      config: of the pipeline.
      runs: what became of each node, the pusher last.
      pushed: id of the PushedModel that stands for what is served.
    """
    store = open_store(config.metadata_path)
    lineage = trace(store, pushed)
    by_type = {node.type: node for node in reversed(lineage.values())}
    vocabularies = load_vocabularies(by_type["components.Vocabularies"].uri)
    embedding = _embedding_config(by_type["components.TableConfigs"])
    scores, rows = compare_with_baselines(
        inputs_of_run(by_type["ModelRun"].uri, by_type["components.Vocabularies"].uri, by_type["TransformGraph"].uri),
        train_files=_files(by_type["Examples"], "train"),
        eval_files=_files(by_type["Examples"], "eval"),
        model_folder=os.path.join(by_type["Model"].uri, "Format-Serving"),
        candidate=config.training.negatives.feature if config.training.negatives else None,
        counts={name: vocabulary.counts for name, vocabulary in vocabularies.items()},
    )
    history = _json(os.path.join(by_type["ModelRun"].uri, "history.json"))
    return Report(
        name=config.name,
        finished=datetime.datetime.now().isoformat(timespec="seconds"),
        seconds=sum(run.seconds for run in runs),
        nodes=[
            {"node": run.node, "state": run.state, "seconds": run.seconds, "execution": run.execution} for run in runs
        ],
        push=_push(lineage[pushed], missed_thresholds(_evaluation_uri(store, runs))),
        quality=[{"scorer": score.scorer, "metrics": dict(score.metrics)} for score in scores],
        eval_rows=rows,
        quality_note=_quality_note(config, scores),
        curves=_curves(history),
        training_note=_training_note(history),
        parity=_parity(lineage[pushed]),
        tables=_tables(by_type["components.TableConfigs"], embedding),
        vocabularies=[_vocabulary(vocabulary) for vocabulary in vocabularies.values()],
        drift=[row for vocabulary in vocabularies.values() for row in _drift(vocabulary)],
        data=_data(by_type["Examples"]),
        warm_start=_warm_start(lineage),
    )


def _quality_note(config: PipelineConfig, scores: Sequence[Score]) -> str:
    notes = ["The baselines were made in this run, from the same features."]
    if config.training.early_stopping is not None:
        notes.append("Early stopping chose the model's step by these rows, which flatters it a little.")
    if all(score.metrics["AUC"] is None for score in scores):
        notes.append("They hold one class only: no AUC can be computed, and the log loss says little.")
    if config.training.negatives is not None:
        notes.append("Negatives were drawn while training, so the predicted level is theirs: compare the order (AUC).")
    return " ".join(notes)


def _json(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _files(examples: Node, split: str) -> list[str]:
    folder = os.path.join(examples.uri, f"Split-{split}")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def _embedding_config(node: Node) -> EmbeddingConfig:
    with open(os.path.join(node.uri, "embedding_config.json"), encoding="utf-8") as file:
        return EmbeddingConfig.from_json(file.read())


def _evaluation_uri(store: Any, runs: Sequence[NodeRun]) -> str:
    """Where the Evaluator of this run left its figures."""
    (execution,) = [int(run.execution or 0) for run in runs if run.node == "Evaluator"]
    outputs = {node.type: node.uri for found in outputs_of(store, execution) for node in [trace(store, found)[found]]}
    return outputs["ModelEvaluation"]


def _push(node: Node, missed: Sequence[str]) -> dict[str, Any]:
    pushed = bool(node.facts.get("pushed"))
    reason = " ".join([str(node.facts.get("reason", "")), *([] if pushed else missed)])
    destination = str(node.facts.get("pushed_destination", ""))
    return {
        "pushed": pushed,
        "version": str(node.facts.get("pushed_version", "")),
        "destination": destination,
        "reason": reason.strip(),
        "query": _query(destination) if pushed else "",
    }


def _query(folder: str) -> str:
    """Two lines of Python that ask the version, with nothing of this project installed."""
    return (
        f"import tensorflow as tf; model = tf.saved_model.load({folder!r})\n"
        'model.signatures["serving_default"](examples=tf.constant([serialized_example]))["probability"]'
    )


def _curves(history: Mapping[str, Any]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    def points(entries: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
        return [(entry["step"], entry[key]) for entry in entries if entry.get(key) is not None]

    return {
        "loss": {"train": points(history["train"], "loss"), "eval": points(history["evals"], "loss")},
        "auc": {"eval": points(history["evals"], "auc")},
    }


def _training_note(history: Mapping[str, Any]) -> str:
    facts = ", ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in history["facts"].items() if _plain(value))
    rates = [entry["rows_per_second"] for entry in history["train"] if entry.get("rows_per_second")]
    rate = f"; {sorted(rates)[len(rates) // 2]:,.0f} rows/s (median)" if rates else ""
    return f"{history['seconds']:.1f} s of training{rate}; {facts}"


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parity(node: Node) -> list[dict[str, Any]]:
    figures = node.facts.get("parity") or {}
    return [
        {"name": name, "difference": float(item["max_abs"]), "tolerance": figures["tolerance"], "rows": item["rows"]}
        for name, item in figures.get("differences", {}).items()
    ]


def _tables(node: Node, config: EmbeddingConfig) -> list[dict[str, Any]]:
    plan = _json(os.path.join(node.uri, "plan.json"))["tables"]
    return [
        {
            "name": table.name,
            "combiner": table.combiner,
            "optimizer": type(table.optimizer).__name__ if table.optimizer else "default",
            **plan[table.name],
        }
        for table in config.tables
    ]


def _warm_start(lineage: Mapping[int, Node]) -> dict[str, Any] | None:
    """What the CheckpointLoader nearest to the model kept of the earlier checkpoint."""
    for node in lineage.values():
        if node.type == "components.EmbeddingCheckpoint" and "remap" in node.facts:
            return {"step": node.facts["step"], **_json(os.path.join(node.uri, REMAP_REPORT))}
    return None


def _vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    order = np.argsort(-vocabulary.counts, kind="stable")[:_MOST_FREQUENT]  # with a base rows may have another order
    return {
        "name": vocabulary.name,
        "size": len(vocabulary),
        "distinct": vocabulary.distinct,
        "coverage": vocabulary.coverage,
        "digest": vocabulary.digest,
        "sample": [
            shown_token(token.as_py(), private=vocabulary.private) for token in vocabulary.tokens.take(pa.array(order))
        ],
        "evolution": None if vocabulary.evolution is None else vocabulary.evolution.facts(),
    }


def _drift(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Per feature the shares of the data that the base vocabulary does not know; nothing without one."""
    found = {name: drift_of(summary) for name, summary in vocabulary.features.items()}
    return [{"feature": name, "vocabulary": vocabulary.name, **shares} for name, shares in found.items() if shares]


def _data(node: Node) -> dict[str, Any]:
    ingest = node.facts.get("ingest") or {}
    rows = {
        "files": ingest.get("files"),
        "rows read": ingest.get("rows_read"),
        **{f"rows left out by {item['filter']}": item["rows"] for item in ingest.get("filtered", ())},
        "rows in neither split": ingest.get("in_neither_split"),
        "rows set aside as bad": ingest.get("set_aside", {}).get("rows"),
        **{f"rows of the {split} split": count for split, count in ingest.get("splits", {}).items()},
    }
    return {name: f"{count:,}" for name, count in rows.items() if count is not None}

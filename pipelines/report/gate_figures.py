"""Reads the figures of the gates of a run: QualityGate, Shadow and TableHealth."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ml_metadata import MetadataStore

from components.quality_gate.executor import QUALITY_FILE
from components.shadow.executor import SHADOW_FILE
from embedding_core.health import HEALTH_FILE
from embedding_core.storage import read_json
from pipelines.lineage.graph import outputs_of, read_node
from pipelines.report.node_run import NodeRun
from pipelines.report.run_report import Figures

_FILES = {"QualityGate": QUALITY_FILE, "Shadow": SHADOW_FILE, "TableHealth": HEALTH_FILE}


def figures_of_gate(store: MetadataStore, runs: Sequence[NodeRun], gate: str) -> Figures:
    """Return what a gate wrote beside its blessing in this run."""
    figures: Figures = read_json(os.path.join(output_of(store, runs, gate, "ModelBlessing"), _FILES[gate]))
    return figures


def output_of(store: MetadataStore, runs: Sequence[NodeRun], name: str, type_name: str) -> str:
    """Return the folder of a node's output of that type in this run."""
    (execution,) = [int(run.execution or 0) for run in runs if run.node == name]
    outputs = {node.type: node.uri for one in outputs_of(store, execution) for node in [read_node(store, one)]}
    return outputs[type_name]


def retrieval_note(quality: Figures) -> str:
    """Say how the rows were chosen, or why retrieval was not measured."""
    retrieval = quality["retrieval"]
    if retrieval is None:
        return f"not measured: {quality['retrieval_note']}"
    user, count, positive = retrieval["user"], f"{retrieval['queries']:,}", f"{retrieval['positive_rows']:,}"
    if user is None:
        chosen = f"a seeded sample of {count} of the {positive}" if retrieval["is_sample"] else f"all {count}"
        queries = f"{chosen} positive rows of the eval split"
    else:
        chosen = f"a seeded sample of {count}" if retrieval["is_sample"] else f"all {count}"
        queries = f"{chosen} values of {user} in the {positive} positive rows of the eval split"
    return (
        f"{queries}, each ranked among all {retrieval['candidates']:,} candidates of {retrieval['feature']}"
        f"{_seen_note(retrieval)}; {retrieval['unknown']:,} true candidates are not among these and count as misses; "
        "equal scores share their ranks; popularity is counted in the positive rows of the train split."
    )


def _seen_note(retrieval: Figures) -> str:
    """Say that seen candidates are left out, and how many of them are true; empty if they are not left out."""
    if not retrieval["exclude_seen"]:
        return ""
    seen_truths = f"{retrieval['seen_truths']:,}"
    if "nothing_left_out" not in retrieval:  # written by a release up to 0.1.0
        return f" but those seen before, which are left out unless they are true ({seen_truths} are both)"
    return f" but those seen before, which are left out; {seen_truths} of these are true (repeats) and count as misses"


def recall_curves(retrieval: Figures | None) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the points of the curves of Recall@k; nothing if retrieval was not measured."""
    return (
        {}
        if retrieval is None
        else {"recall": {name: list(map(tuple, points)) for name, points in retrieval["curves"].items()}}
    )

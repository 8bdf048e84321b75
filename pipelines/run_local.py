"""Runs a configured pipeline on this machine, from the first file to the report."""

from __future__ import annotations

import os

from rich.console import Console

from embedding_core.errors import ConfigError
from pipelines.config import PipelineConfig, data_files
from pipelines.embedding_pipeline import EarlierRun, create_pipeline, metadata_path
from pipelines.figures import collect_report
from pipelines.lineage import newest_artifact, open_store, trace
from pipelines.progress import Display
from pipelines.report import Report, print_report, save_report
from pipelines.runner import ReportingDagRunner

__all__ = ["find_earlier", "run"]

_LATEST = "latest"


def run(config: PipelineConfig, *, console: Console | None = None) -> Report:
    """Run the pipeline, write the report beside the pushed versions, and print it.

    What an earlier run pushed, trained or recorded stays as it was, also where this run fails.

    Args:
      config: the configuration.
      console: where progress goes; standard error by default.

    Returns:
      The figures of the run.

    Raises:
      EmbeddingError: something that the user gave is wrong.
      Exception: whatever else ended a component.
    """
    data_files(config.data)  # a missing file is an error before anything is written
    os.makedirs(config.work_dir, exist_ok=True)
    pipeline = create_pipeline(config, earlier=find_earlier(config))
    with Display(console) as display:
        runner = ReportingDagRunner(display.node_changed)
        runner.run(pipeline)
        report = collect_report(config, runner.nodes)
    print_report(report, save_report(report, os.path.join(config.work_dir, "report")))
    return report


def find_earlier(config: PipelineConfig) -> EarlierRun:
    """The URIs that "latest" means, from the pipeline's own metadata; other values are URIs themselves.

    Raises:
      ConfigError: a warm start from "latest" is asked for, and there is no earlier checkpoint.
    """
    checkpoint = config.warm_start
    if checkpoint == _LATEST:
        checkpoint = _latest_checkpoint(config)
    baseline = config.evaluation.baseline
    if baseline == _LATEST:
        baseline = _latest_pushed_model(config)
    return EarlierRun(checkpoint=checkpoint, baseline=baseline)


def _latest_checkpoint(config: PipelineConfig) -> str:
    path = metadata_path(config)
    if os.path.isfile(path):
        store = open_store(path)
        found = newest_artifact(store, "components.EmbeddingCheckpoint")
        if found is not None:
            return trace(store, found)[found].uri
    raise ConfigError(
        f"`warm_start` is {_LATEST!r}: {config.work_dir!r} has no earlier checkpoint; leave it out for the first run."
    )


def _latest_pushed_model(config: PipelineConfig) -> str | None:
    """The Model of the newest push; None before the first one, which has nothing to be compared with."""
    path = metadata_path(config)
    if not os.path.isfile(path):
        return None
    store = open_store(path)
    pushed = newest_artifact(store, "PushedModel", having={"pushed": 1})
    models = [] if pushed is None else [node for node in trace(store, pushed).values() if node.type == "Model"]
    return models[0].uri if models else None

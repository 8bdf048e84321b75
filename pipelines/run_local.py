"""Runs a configured pipeline on this machine, from the first file to the report."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console

from components import compat
from embedding_core.storage import scratch_tempdir
from embedding_core.training import TrainingConfig
from embedding_core.training.strategy import choose_placement
from pipelines.component_inputs import training_config
from pipelines.config import PipelineConfig, data_files
from pipelines.earlier import EarlierRun, find_earlier, served_push
from pipelines.embedding_pipeline import create_pipeline
from pipelines.figures import collect_report
from pipelines.lineage import open_store, outputs_of
from pipelines.place import local_place
from pipelines.progress import Display
from pipelines.report import REPORTS, Report, keep_report, save_report
from pipelines.report_screen import print_report
from pipelines.run_log import captured
from pipelines.runner import NodeRun, ReportingDagRunner
from pipelines.terminal import SafeConsole
from pipelines.upkeep import tidy
from pipelines.work_dir import file_permissions, held

__all__ = ["run"]


def run(config: PipelineConfig, *, changed: Sequence[str] = (), console: Console | None = None) -> Report:
    """Run the pipeline, write its report into the work_dir, and print it.

    The report of this run is in `report/`; those of all versions, and of the runs whose model was refused, in
    `reports/`.

    What an earlier run pushed, trained or recorded stays as it was, also where this run fails.

    Args:
      config: the configuration.
      changed: dotted keys of the settings that were put over the file's.
      console: where progress goes; standard error by default.

    Returns:
      The figures of the run.

    Raises:
      EmbeddingError: something that the user gave is wrong, or another run uses the work_dir.
      Exception: whatever else ended a component.
    """
    data_files(config.data)  # a missing file is an error before anything is written
    if config.training.strategy == "simulated_tpu":  # its devices must be made before any component runs TensorFlow
        choose_placement(TrainingConfig.from_json(training_config(config)))
    with (
        file_permissions(config),
        scratch_tempdir("run"),
        held(config),
        captured(config.work_dir) as screen,
        Display(console or SafeConsole(file=screen, highlight=False)) as display,
    ):
        _tidy(config)
        earlier = find_earlier(config)
        nodes, pushed = _run_until_served(config, earlier, display)
        report = collect_report(config, nodes, pushed, changed)
        keep_report(report, os.path.join(config.work_dir, REPORTS))
        saved = save_report(report, os.path.join(config.work_dir, "report"))
    print_report(report, saved)
    return report


def _tidy(config: PipelineConfig) -> None:
    if os.path.isfile(config.metadata_path):
        place = local_place(config)
        with compat.metadata.Metadata(place.metadata) as handle:
            tidy(handle.store, config.name, place.root)


def _run_until_served(config: PipelineConfig, earlier: EarlierRun, display: Display) -> tuple[list[NodeRun], int]:
    """Run the nodes; where the pusher came from the cache and its version is no longer what is served, push again.

    Returns:
      What became of the nodes, and the id of the PushedModel that stands for what is served.
    """
    nodes = _run_once(config, earlier, display, None)
    store = open_store(config.metadata_path)
    (pushed,) = outputs_of(store, int(nodes[-1].execution or 0))
    served = served_push(store, pushed, config.push_destination)
    if served is not None:
        return nodes, served
    again = _run_once(config, earlier, display, f"in place of execution {nodes[-1].execution}")
    (pushed,) = outputs_of(store, int(again[-1].execution or 0))
    return [*nodes[:-1], again[-1]], pushed


def _run_once(config: PipelineConfig, earlier: EarlierRun, display: Display, republish: str | None) -> list[NodeRun]:
    runner = ReportingDagRunner(display.node_changed)
    runner.run(create_pipeline(config, earlier=earlier, republish=republish))
    return runner.nodes

"""Runs the pipeline of a configuration on this machine, from the first file to the report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ml_metadata import MetadataStore
from rich.console import Console

from components import compat
from components.pusher.publish import set_version_aside
from components.pusher.served import damage_of, served_versions, version_updates
from embedding_core.errors import ConfigError
from embedding_core.rooms import hooks
from embedding_core.storage import environment_variable, is_remote, scratch_tempdir
from embedding_core.training.device_choice import choose_placement
from pipelines.config import PipelineConfig
from pipelines.config.metadata_server import has_store
from pipelines.console.terminal import SafeConsole
from pipelines.lineage.ancestors import is_rolled_back, pushes_of, record_rollbacks
from pipelines.lineage.graph import Node, open_store, outputs_of, read_graph, read_node, trace
from pipelines.local.metadata_repair import repair_metadata
from pipelines.local.resource_use import RunProfile
from pipelines.local.run_display import Display, captured
from pipelines.local.runner import ReportingDagRunner, Say
from pipelines.local.storage_errors import check_file_systems, storage_errors_as_one
from pipelines.local.work_dir import REPORTS, file_permissions, ready_metadata, run_lock
from pipelines.pipeline.component_inputs import training_config
from pipelines.pipeline.embedding_pipeline import create_pipeline
from pipelines.pipeline.run_target import PreviousRun, local_target
from pipelines.pipeline.tfma_config import missed_thresholds
from pipelines.previous.find_previous_run import find_previous_run
from pipelines.report.evaluation_results import output_of
from pipelines.report.html_report import save_report
from pipelines.report.run_report import NodeRun, Report, RunResult
from pipelines.report.screen_report import print_outcome, print_report, print_summary

# Decides whether the version that a run pushed, or took from the cache, is served or has to be pushed again.


def served_push(config: PipelineConfig, store: MetadataStore, pushed: int) -> int | None:
    """Return the id of the PushedModel of the newest served version, if it has the model of a run.

    Args:
      config: the configuration of the run.
      store: the metadata.
      pushed: id of the PushedModel of the run.

    Returns:
      `pushed` itself if the model was refused, or if its version and update are the newest; else the id of the
      newest version's PushedModel if the newest version has the same model. None if another model or no model is
      served: then the run's model has to be pushed again.
    """
    push = read_node(store, pushed)
    if not push.facts.get("pushed"):
        return pushed
    destination = config.push_destination
    newest = max(served_versions(destination), default=None)
    if newest is not None and _served_by(push) == (newest, version_updates().last(destination, newest)):
        return pushed
    other = None if newest is None else pushes_of(read_graph(store, config.name), destination).get(newest)
    if other is None:
        return None
    return other.id if _models(trace(store, other.id)) == _models(trace(store, pushed)) else None


def _served_by(push: Node) -> tuple[int, int]:
    """Return the version and the update that a PushedModel was published as; 0 is the whole version."""
    return int(push.facts["pushed_version"]), version_updates().pushed(push.facts)


def _models(nodes: Mapping[int, Node]) -> list[int]:
    return [node.id for node in nodes.values() if node.type == "Model"]


def check_not_rolled_back(config: PipelineConfig, store: MetadataStore, pushed: int) -> None:
    """Check that the version of a PushedModel was not rolled back.

    Raises:
      ConfigError: it was rolled back.
    """
    if is_rolled_back(read_graph(store, config.name), pushed, config.push_destination):
        raise ConfigError(
            f"the model of this run was pushed to {config.push_destination!r} before, and rolled back: change its data "
            "or configuration, or give `--again` to push it once more."
        )


def damaged_version(store: MetadataStore, pushed: int, destination: str) -> tuple[int, str] | None:
    """Return the number of a PushedModel's version and what is wrong with it; None if it is intact or was refused."""
    facts = read_node(store, pushed).facts
    if not facts.get("pushed"):
        return None
    version = int(facts["pushed_version"])
    damage = damage_of(destination, version, facts.get("model_digest"))
    return None if damage is None else (version, damage)


Stage: TypeAlias = Callable[[str], contextlib.AbstractContextManager[object]]
"""Makes the context that a stage of the run is measured in."""


def run(
    config: PipelineConfig,
    *,
    again: bool = False,
    changed: Sequence[str] = (),
    console: Console | None = None,
    profile: bool = False,
    keep_transform: bool = False,
    printed: bool = True,
    quiet: bool = False,
    is_ready: bool = False,
) -> tuple[RunResult, Report | None]:
    """Run the pipeline, write its report into the work_dir, and print it.

    The report of this run is in `report/`; the reports of all versions and of all refused runs are in `reports/`.
    If this run fails, what previous runs pushed, trained or recorded is unchanged.

    Args:
      config: the configuration.
      again: train once more on data that the previous run was trained on, and push again what was rolled back.
      changed: dotted keys of the settings that override the file's.
      console: console for the progress; standard error by default.
      profile: measure what each node uses, and show it in the report.
      keep_transform: keep the TransformGraph that the run starts from, if the preprocessing is the same.
      printed: whether the report is also printed.
      quiet: whether progress and notes are left out, and only three lines of the report are printed.
      is_ready: whether `ready_metadata` was called before.

    Returns:
      What the run did, and its figures; None if these could not be read or written. That changes nothing of what the
      run did: the screen says why in one line, and the log has the traceback.

    Raises:
      EmbeddingError: the input of the user is wrong, or another run uses the work_dir.
      Exception: any other error of a component.
    """
    report: Report | None = None
    with storage_errors_as_one(config):
        used = RunProfile() if profile else None
        stage: Stage = contextlib.nullcontext if used is None else used.stage
        check_file_systems(config)
        # Devices must be known before any component runs TensorFlow, and a missing GPU before the first node.
        if config.training.strategy not in ("auto", "cpu", "tpu"):
            choose_placement(training_config(config))
        upgraded = None if is_ready else ready_metadata(config)
        with (
            file_permissions(config),
            scratch_tempdir("run"),
            run_lock(config),
            captured(config.work_dir) as screen,
            Display(console or SafeConsole(file=screen, highlight=False), quiet=quiet) as display,
            _found_by_workers(config),
        ):
            if upgraded is not None:
                display.say(f"the metadata is of a previous release: it was upgraded, and {upgraded} is a backup")
            _tidy(config, display.say)
            previous = find_previous_run(config, again=again, keep_transform=keep_transform)
            for note in () if quiet else previous.notes:
                display.say(note)
            nodes, pushed = _run_until_served(config, previous, display, stage, again=again)
            result = read_result(open_store(config.metadata_path), nodes, pushed)
            notes, reports = _notes(previous, nodes, result), os.path.join(config.work_dir, REPORTS)
            try:
                from pipelines.report.run_figures import collect_report

                with stage("report and baselines"):
                    figures = collect_report(config, nodes, pushed, result, changed, reports)
                stages = () if used is None else [dataclasses.asdict(stage) for stage in used.stages]
                figures = dataclasses.replace(figures, notes=notes, profile=stages)
                page = save_report(figures, os.path.join(config.work_dir, "report"), reports)
                report = figures
            except Exception as error:  # whatever it is, it does not change what the run did
                traceback.print_exc()  # into the log
                line = " ".join(str(error).split())
                display.say(f"warning: the report of this run could not be made: {type(error).__name__}: {line}")
    if printed and report is not None:
        (print_summary if quiet else print_report)(report, page)
    elif printed:
        print_outcome(result)
    return result, report


def read_result(store: MetadataStore, runs: Sequence[NodeRun], pushed: int) -> RunResult:
    """Read what a run did from the PushedModel that its pusher, or a previous one, recorded.

    Args:
      store: the metadata.
      runs: the node runs, the pusher's last.
      pushed: id of the PushedModel of the version that is served, or of this run if its model was refused.
    """
    facts, from_cache = read_node(store, pushed).facts, runs[-1].state == "cached"
    destination = str(facts.get("pushed_destination", ""))
    if not facts.get("pushed"):
        missed = missed_thresholds(output_of(store, runs, "Evaluator", "ModelEvaluation"))
        reason = " ".join([str(facts.get("reason", "")), *missed]).strip()
        return RunResult(pushed=False, from_cache=from_cache, destination=destination, reason=reason)
    version = str(facts.get("pushed_version", ""))
    result = RunResult(pushed=True, from_cache=from_cache, version=version, destination=destination)
    for room in hooks("pipelines", "run"):
        result = room.with_form(result, facts)
    return result


def _found_by_workers(config: PipelineConfig) -> contextlib.AbstractContextManager[None]:
    """Let the processes of `data.workers` find the user's modules, as this process does."""
    if config.data.workers == 1:
        return contextlib.nullcontext()
    before = os.environ.get("PYTHONPATH")
    return environment_variable("PYTHONPATH", os.pathsep.join([*([before] if before else []), config.python_path]))


def _tidy(config: PipelineConfig, say: Say) -> None:
    target = local_target(config)
    if not has_store(config.metadata_path) and not os.path.isdir(target.root):
        return  # the first run
    with compat.metadata.Metadata(target.metadata) as handle:
        repaired = repair_metadata(handle.store, config.name, target.root)
        record_rollbacks(handle.store, config.push_destination)
    for artifact in repaired.lost:
        say(f"artifact {artifact} is damaged or gone: a node that needs it restores it")
    if repaired.left_over is not None:
        say(
            f"metadata {config.metadata_path} does not know some outputs in {target.root}: they were moved to "
            f"{repaired.left_over}, and are made again. They contain tokens of the data: delete them, or restore a "
            "backup of the metadata and move them back."
        )


def _notes(previous: PreviousRun, nodes: Sequence[NodeRun], result: RunResult) -> list[str]:
    """Return notes on what the run started from, and a note if a previous run had already done all the work."""
    done = previous.repeats is not None and all(node.state == "cached" for node in nodes)
    if not done or not result.pushed:
        return list(previous.notes)
    return [*previous.notes, f"{previous.repeats}; nothing was left to do; version {result.version} is served."]


def _run_until_served(
    config: PipelineConfig, previous: PreviousRun, display: Display, stage: Stage, *, again: bool
) -> tuple[list[NodeRun], int]:
    """Run the nodes; push again if the pusher's result is cached, but its version is damaged or not served.

    A damaged version is set aside after the new one is published, so that servers always have one.

    Returns:
      The node runs, and the id of the PushedModel of the version that is served, or of this run if its model was
      refused.

    Raises:
      ConfigError: the result is cached, and its version was rolled back.
    """
    nodes = _run_once(config, previous, display, stage, None)
    store = open_store(config.metadata_path)
    (pushed,) = outputs_of(store, int(nodes[-1].execution or 0))
    if nodes[-1].state != "cached":
        return nodes, pushed
    if not again:
        check_not_rolled_back(config, store, pushed)
    served = served_push(config, store, pushed)
    damaged = None if served is None else damaged_version(store, served, config.push_destination)
    if served is not None and damaged is None:
        return nodes, served
    if damaged is not None:
        display.say(f"{damaged[1]} It is pushed again.")
    republished = _run_once(config, previous, display, stage, f"in place of execution {nodes[-1].execution}")
    (pushed,) = outputs_of(store, int(republished[-1].execution or 0))
    is_replaced = damaged is not None and bool(read_node(store, pushed).facts.get("pushed"))
    if damaged is not None and is_replaced and not is_remote(config.push_destination):
        display.say(f"the damaged version is now {set_version_aside(config.push_destination, damaged[0])}")
    return [*nodes[:-1], republished[-1]], pushed


def _run_once(
    config: PipelineConfig, previous: PreviousRun, display: Display, stage: Stage, republish: str | None
) -> list[NodeRun]:
    runner = ReportingDagRunner(display.node_changed, display.say, stage)
    runner.run(create_pipeline(config, previous=previous, republish=republish))
    return runner.nodes

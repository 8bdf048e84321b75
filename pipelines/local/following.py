"""Runs the pipeline on spans as they arrive: each run goes on from the version that the run before it pushed.

The process stays up, so a run does not load TensorFlow and TFX again. What was trained is read from ML Metadata before
each run, not kept in a file of its own: a process that is killed and started again, or whose version was rolled back,
goes on with the first span that the pushed version was not trained on. The rows of a run that pushed nothing are read
again by the next run, together with the spans that arrived meanwhile, and so are those of spans with too few rows for
a run. So each row is trained on once, or is in a run that is not finished.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import shutil
import time
from collections.abc import Iterator

from ml_metadata import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as mlmd

from components import compat
from components.example_gen.data_files import Span
from components.example_gen.spans import Spans
from components.example_gen.tally import TooFewRowsError
from components.pusher.served import served_versions
from embedding_core.storage import read_json
from pipelines.config import PipelineConfig
from pipelines.console.terminal import echo
from pipelines.local import run_local
from pipelines.local.metadata_repair import is_output, newest_execution
from pipelines.local.work_dir import REPORTS, InUseError, run_lock
from pipelines.pipeline.run_target import local_target
from pipelines.previous.trained_data import (
    Arrived,
    Trained,
    arrived_spans,
    check_follows,
    chosen_spans,
    span_order,
    trained_spans,
)
from pipelines.report.run_report import Report, RunResult

_NAMED = 5
"""How many copied spans are named one by one."""


def follow(
    config: PipelineConfig, *, until_idle: bool = False, runs: int | None = None
) -> Iterator[tuple[RunResult, Report | None]]:
    """Run the pipeline on spans as they arrive, and yield what each run did, and its report; see `run_local.run`.

    Args:
      config: the configuration; `follow` in it says how.
      until_idle: stop when no span is left to train on; otherwise wait for the next one.
      runs: stop after this number of runs; None goes on for ever.

    Raises:
      ConfigError: the runs of the configuration do not go on from each other; see `check_follows`.
      InUseError: another command used the work_dir for more than `follow.wait_seconds`.
      EmbeddingError: see `run_local.run`. What is pushed stays pushed; the same call goes on.
    """
    check_follows(config)
    trained, noted = trained_spans(config), Arrived()
    refused: tuple[Span, ...] = ()
    done, waits_since = 0, None
    while runs is None or done < runs:
        arrived = arrived_spans(config, trained)
        noted = _name_left_out(arrived, noted)
        chosen = chosen_spans(config, arrived.new, trained, refused)
        if not chosen or chosen == refused:
            if until_idle:
                return
            waits_since = None
            time.sleep(config.follow.poll_seconds)
            continue
        before, trained = trained, trained_spans(config)
        if trained != before:  # meanwhile, another command pushed or rolled back
            continue
        try:
            result = _run(config, chosen, arrived, trained)
        except InUseError as error:
            waits_since = _wait_for_lock(config, error, waits_since)
            continue
        except TooFewRowsError as error:
            if not trained.spans:  # the configuration may be wrong: no run has read its data yet
                raise
            echo(f"warning: no run until the next span arrives: {error}", err=True)
            refused, waits_since = chosen, None
            continue
        done, waits_since = done + 1, None
        trained = trained_spans(config)
        with contextlib.suppress(InUseError):  # what is old after this run is also old after the next one
            _remove_old_runs(config, trained)
        refused = chosen if trained.model_run == before.model_run else ()
        yield result


def _run(
    config: PipelineConfig, chosen: tuple[Span, ...], arrived: Arrived, trained: Trained
) -> tuple[RunResult, Report | None]:
    """Run the pipeline on some spans."""
    spans = config.data.spans or Spans()
    numbers = [span_order(span) for span in chosen]
    copied = [span for span in arrived.copied if numbers[0] < span_order(span) < numbers[-1]]
    spans = spans.replace(first=chosen[0], last=chosen[-1], without=(*spans.without, *copied))
    step = config.replace(data=config.data.replace(spans=spans))
    keep = 0 < trained.runs < config.follow.full_run_every
    return run_local.run(step, keep_transform=keep, printed=False)


def _wait_for_lock(config: PipelineConfig, error: InUseError, since: float | None) -> float:
    """Wait before the next attempt to get the lock; return the time of the first attempt.

    Raises:
      InUseError: the lock was waited for too long.
    """
    now = time.monotonic()
    if since is None:
        echo(f"waiting, at most {config.follow.wait_seconds:g} s (`follow.wait_seconds`): {error}", err=True)
    elif now - since > config.follow.wait_seconds:
        raise error
    time.sleep(config.follow.poll_seconds)
    return now if since is None else since


def _remove_old_runs(config: PipelineConfig, trained: Trained) -> None:
    target, keep = local_target(config), config.follow.keep_runs
    with run_lock(config), compat.metadata.Metadata(target.metadata) as handle:
        remove_old_runs(handle.store, config.name, target.root, keep, trained.model_run)
        newest = max(served_versions(config.push_destination), default=None)
        remove_old_reports(handle.store, os.path.join(config.work_dir, REPORTS), keep, newest)


def _name_left_out(arrived: Arrived, noted: Arrived) -> Arrived:
    """Name spans that are not trained on, once each; return those that were named."""
    late = [span for span in arrived.late if span not in noted.late]
    if late:
        first, last = late[0], late[-1]
        echo(
            f"warning: {len(late)} spans arrived after a later one was trained on ({first} to {last}): they are not "
            f"trained on. To train on them now, out of order: `tfx-embeddings run` with --set data.spans.first={first} "
            f"--set data.spans.last={last}",
            err=True,
        )
    changed = [span for span in arrived.changed if span not in noted.changed]
    if changed:
        echo(
            f"warning: the files of {len(changed)} spans changed after they were trained on ({changed[0]} to "
            f"{changed[-1]}): what they hold now is not trained on. Give rows that come later a span of their own.",
            err=True,
        )
    copied = {span: source for span, source in arrived.copied.items() if span not in noted.copied}
    for span, source in itertools.islice(copied.items(), _NAMED):
        echo(
            f"warning: the files of span {span} equal those of span {source}, byte for byte: they are not trained on "
            "again. If that is intended, set `warm_start.repeated_data: train`.",
            err=True,
        )
    if len(copied) > _NAMED:
        echo(f"warning: so do those of {len(copied) - _NAMED} more spans, up to {list(copied)[-1]}.", err=True)
    return Arrived((), (*noted.late, *late), (*noted.changed, *changed), {**noted.copied, **copied})


# Removes the files and reports of old runs of a pipeline; ML Metadata keeps their lineage.

_RUN = "pipeline_run"
_REPORT = re.compile(r"(?P<version>\d+)(-[a-z]+-\d+)?|refused-.+")  # an update has a number too


def remove_old_runs(store: MetadataStore, pipeline: str, root: str, keep: int, pushed: int | None) -> None:
    """Remove the files of artifacts that no run that is kept made, read or took from the cache.

    The newest runs are kept, and those that made or used the ModelRun of the pushed version: all runs since may have
    been refused, and the next one starts from that version.

    The artifacts become DELETED in ML Metadata; their records of lineage stay beside where they were. An artifact is
    marked before its files are removed: if the process is killed in between, the files stay, and nothing uses them.

    Args:
      store: the metadata, open for writing; the caller has the lock of the pipeline.
      pipeline: name of the pipeline.
      root: folder of the pipeline's outputs; artifacts outside of it are kept.
      keep: number of the newest runs whose artifacts are kept.
      pushed: id of the ModelRun of the pushed version; None if nothing was pushed.
    """
    context = store.get_context_by_type_and_name("pipeline", pipeline)
    if context is None:
        return
    runs = sorted(run.id for run in store.get_children_contexts_by_context(context.id) if run.type == _RUN)
    of_pushed = {run.id for run in store.get_contexts_by_artifact(pushed)} if pushed is not None else set()
    chosen = [*runs[-keep:], *of_pushed.intersection(runs)]
    kept = {artifact.id for run in chosen for artifact in store.get_artifacts_by_context(run)}
    inside = os.path.join(os.path.abspath(root), "")
    old = [
        artifact
        for artifact in store.get_artifacts_by_context(context.id)
        if is_output(artifact) and artifact.id not in kept
    ]
    old = [artifact for artifact in old if os.path.abspath(artifact.uri).startswith(inside)]
    for artifact in old:
        artifact.state = mlmd.Artifact.DELETED
    if old:
        store.put_artifacts(old)
    for artifact in old:
        shutil.rmtree(artifact.uri, ignore_errors=True)
    for folder in glob.iglob(os.path.join(glob.escape(root), "*", ".system", "*", "*")):
        with contextlib.suppress(OSError):  # it has files, or is not a folder
            os.rmdir(folder)  # TFX leaves empty ones for each execution


def remove_old_reports(store: MetadataStore, folder: str, keep: int, version: int | None) -> None:
    """Remove old reports.

    Args:
      store: the metadata, whose ids of executions are the order of the runs.
      folder: folder of the reports of all versions and of all refused runs.
      keep: number of the newest reports that are kept.
      version: number of the newest version, whose reports are kept too, those of its updates included; None if nothing
        was pushed.
    """
    names = os.listdir(folder) if os.path.isdir(folder) else []
    reports = {name: match for name in names if (match := _REPORT.fullmatch(name))}
    newest = newest_execution(store)
    old = sorted(reports, key=lambda name: _execution(os.path.join(folder, name), newest))[:-keep]
    old = [name for name in old if reports[name]["version"] != str(version)]
    for name in old:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _execution(report: str, newest: int) -> int:
    """Return the id of the last execution of a report's run.

    It is 0 if the report is incomplete, since a killed process was removing it, or if it is of another store: the
    newest execution of this one is `newest`.
    """
    try:
        nodes = read_json(os.path.join(report, "report.json"))["nodes"]
    except (OSError, ValueError, KeyError):
        return 0
    last = max((node.get("execution") or 0 for node in nodes), default=0)
    return last if last <= newest else 0

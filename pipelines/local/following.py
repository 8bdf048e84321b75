"""Runs the pipeline on spans as they arrive: each run goes on from the version that the run before it pushed.

The process stays up, so a run does not load TensorFlow and TFX again. What was trained is read from ML Metadata before
each run, not kept in a file of its own: a process that is killed and started again goes on with the first span that
the pushed version was not trained on. The rows of a run that pushed nothing are read again by the next run, together
with the spans that arrived meanwhile. So each row is trained on once, or is in a run that is not finished.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from components import compat
from components.example_gen.pieces import Span
from components.example_gen.spans import Spans
from pipelines.config import PipelineConfig
from pipelines.console.terminal import echo
from pipelines.local import run_local
from pipelines.local.old_runs import remove_old_runs
from pipelines.local.work_dir import run_lock
from pipelines.pipeline.run_target import local_target
from pipelines.previous.next_spans import Arrived, Trained, arrived_spans, check_follows, trained_spans
from pipelines.report.run_report import Report


def follow(config: PipelineConfig, *, until_idle: bool = False, runs: int | None = None) -> Iterator[Report]:
    """Run the pipeline on spans as they arrive, and yield the report of each run.

    Args:
      config: the configuration; `follow` in it says how.
      until_idle: stop when no span is left to train on; otherwise wait for the next one.
      runs: stop after this number of runs; None goes on for ever.

    Raises:
      ConfigError: the runs of the configuration do not go on from each other; see `check_follows`.
      EmbeddingError: see `run_local.run`. What is pushed stays pushed; the same call goes on.
    """
    check_follows(config)
    trained, refused = trained_spans(config), Arrived((), ())
    noted: frozenset[Span] = frozenset()
    done = 0
    while runs is None or done < runs:
        arrived = arrived_spans(config, trained)
        noted = _name_late(arrived.late, noted)
        if not arrived.new or arrived.new == refused.new:
            if until_idle:
                return
            time.sleep(config.follow.poll_seconds)
            continue
        report = _run(config, arrived.new, trained)
        _remove_old_runs(config)
        done += 1
        before, trained = trained, trained_spans(config)
        refused = arrived if trained.spans == before.spans else Arrived((), ())
        yield report


def _run(config: PipelineConfig, new: tuple[Span, ...], trained: Trained) -> Report:
    """Run the pipeline on the first of the new spans."""
    count = config.follow.spans_per_run if trained.spans else None
    chosen = new[:count]
    spans = (config.data.spans or Spans()).replace(first=chosen[0], last=chosen[-1])
    step = config.replace(data=config.data.replace(spans=spans))
    keep = 0 < trained.runs < config.follow.full_run_every
    return run_local.run(step, keep_transform=keep, printed=False)


def _remove_old_runs(config: PipelineConfig) -> None:
    target = local_target(config)
    with run_lock(config), compat.metadata.Metadata(target.metadata) as handle:
        remove_old_runs(handle.store, config.name, target.root, config.follow.keep_runs)


def _name_late(late: tuple[Span, ...], noted: frozenset[Span]) -> frozenset[Span]:
    """Name spans that arrived after a later one was trained on, once each."""
    fresh = [one for one in late if one not in noted]
    if fresh:
        first, last = fresh[0], fresh[-1]
        echo(
            f"warning: {len(fresh)} spans arrived after a later one was trained on ({first} to {last}): they are not "
            f"trained on. To train on them now, out of order: `tfx-embeddings run` with --set data.spans.first={first} "
            f"--set data.spans.last={last}",
            err=True,
        )
    return noted.union(fresh)

"""Trains a model: starts or resumes the run, and writes its result."""

from __future__ import annotations

import dataclasses
import logging
import os
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from embedding_core.checkpoint.dense import DENSE, write_dense
from embedding_core.checkpoint.retrieve import Blocks
from embedding_core.engines import HostEngine
from embedding_core.rooms import hooks
from embedding_core.schema import Json
from embedding_core.storage import scratch_folder
from embedding_core.training.dense_start import dense_inputs, start_dense
from embedding_core.training.device_choice import Placement, choose_placement
from embedding_core.training.encoded_rows import rows_folder
from embedding_core.training.finished_run import HISTORY, RunState, restore_weights, write_weights
from embedding_core.training.job import Encoding, JobData, TrainingJob
from embedding_core.training.loop import WARM_START, History, Loop, Progress, Summaries, end_if, noticed_preemption
from embedding_core.training.step import Trainable, new_trainable

_log = logging.getLogger(__name__)

_PARTS = {"dense": "dense part", "optimizer": "state of the dense optimizer"}


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """A trained model.

    Attributes:
      tables: float32 [rows, dim] by name.
      model: the dense part.
      step: step of this state: the best one with early stopping, else the last. Steps that trained on the validation
        part after it are not counted.
      checkpoint: path of the checkpoint of this state.
      history: curves and figures of the run.
      stacked_on: chips of the real TPU whose checkpoint has the tables stacked, and SparseCores of each; None if it has
        plain tables.
    """

    tables: Mapping[str, tf.Variable]
    model: tf_keras.Model
    step: int
    checkpoint: str
    history: History
    stacked_on: tuple[int, int] | None = None


def _make_trainable(job: TrainingJob, data: JobData, placement: Placement, kind: type[Trainable]) -> Trainable:
    tf_keras.utils.set_random_seed(job.training.seed & 0xFFFFFFFF)
    return new_trainable(
        job.inputs.config,
        job.training,
        model=job.model,
        dense=job.inputs.dense,
        arguments=job.arguments,
        tasks=job.inputs.tasks,
        rows=data.rows_per_replica,
        steps=data.steps,
        replicated=placement.replicated,
        hosts=data.hosts_apart,
        engine_arguments=job.engine_arguments,
        kind=kind,
    )


def _warm_start(
    job: TrainingJob,
    fill: Callable[[Mapping[str, Blocks]], None],
    trainable: Trainable,
    placement: Placement,
) -> None:
    """Fill the tables; fill tables in a TPU's memory by restoring a checkpoint, since nothing else reaches them."""
    tables = trainable.tables
    given = tables.variables or tables.blocks
    if given:
        fill(given)
        return
    if trainable.table_optimizers:
        _log.warning(
            "the tables start from the given rows, but not from their slots, which Keras' optimizers hold here"
        )
    host = HostEngine(job.inputs.config)
    fill(host.table_variables)
    source, stacked_on = host.tables, placement.stacked_on
    if stacked_on is not None:  # TensorFlow's class restores stacks as they lie in memory
        holder: Any = tables.holder
        for room in hooks("embedding_core", "stored_tables"):
            source = room.stacked_tables(host.table_variables, job.inputs.config, holder.embedding_tables, stacked_on)
    with scratch_folder("tables") as folder:
        path = tf.train.Checkpoint(embedding=source).write(os.path.join(folder, "tables"))
        status = tf.train.Checkpoint(embedding=tables.holder).read(path)
        status.expect_partial().assert_existing_objects_matched()


def _start_warm(job: TrainingJob, trainable: Trainable, history: History, placement: Placement) -> None:
    """Fill tables and dense part from a previous run, and record what was restored."""
    if job.warm_start is not None:
        _warm_start(job, job.warm_start, trainable, placement)
    if job.dense_start is None:
        return
    report = start_dense(
        job.dense_start,
        trainable,
        inputs=dense_inputs(job.inputs),
        ranges=job.ranges,
        optimizer=job.training.dense_optimizer.name,
    )
    history.facts[WARM_START] = report
    for part in ("dense", "optimizer"):
        if report[part] == "new":
            _log.warning("warm start: the %s starts from new values: %s", _PARTS[part], report[f"{part}_reason"])
    if report["dense"] == "restored" and report["not_recorded"]:
        _log.warning(
            "warm start: the checkpoint, of an earlier release, does not record its %s: the dense part is restored as "
            "if they were those of this run; if they changed, set `warm_start.dense` to reset",
            " and ".join(report["not_recorded"]),
        )


def _write_dense(job: TrainingJob, trainable: Trainable, folder: str) -> None:
    """Save the dense part for runs that start from this one."""
    inputs = dense_inputs(job.inputs)
    name = job.training.dense_optimizer.name
    write_dense(folder, trainable.model, trainable.optimizer, name=name, inputs=inputs, ranges=job.ranges)


def train(
    job: TrainingJob,
    folder: str,
    *,
    resume_folder: str | None = None,
    rows: str | None = None,
    progress: Progress | None = None,
    encoding: Encoding = lambda split, rows, done: None,
) -> TrainingResult:
    """Train a model.

    On CPU the same job gives the same tables, bit for bit, whether or not it was killed and resumed.

    Args:
      job: model, data and settings.
      folder: folder that gets `checkpoints/` (the state that is returned), `dense/` (for runs that start from it),
        `history.json` and `logs/` (for TensorBoard).
      resume_folder: folder for checkpoints while training; a run continues from the newest one in it. It must
        belong to this job alone. The caller removes it when the result is safe. None uses a folder below `folder`,
        removed at the end.
      rows: folder that keeps encoded rows for later trainings of the same `encoded_rows.rows_key`; None keeps none.
      progress: called at least every 100 steps with the steps done, the total steps, and the state in words.
      encoding: called while rows are encoded.

    Returns:
      The trained model.

    Raises:
      DataError: a split is empty, rows cannot be read, or a label is invalid for its task or the same in all rows.
      TrainingError: the loss or a row of a table is not finite, or a machine that holds tables was lost.
      CheckpointError: there are checkpoints to resume from, but none passes verification.
      PreemptionError: SIGTERM came; the state is saved, and the same call continues from it.
      ConfigError: the device is not available.
    """

    def check(split: str, rows: int, done: int) -> None:
        end_if(preempted)
        encoding(split, rows, done)

    placement = choose_placement(job.training)
    kept = resume_folder or os.path.join(folder, "resume")
    data_class, trainable_class = placement.loop_classes or (JobData, Trainable)
    with (
        placement.scope(kept),
        noticed_preemption() as preempted,
        rows_folder(rows if placement.in_process else None) as encoded,
    ):
        data = data_class(job, placement, encoded, check)
        trainable = _make_trainable(job, data, placement, trainable_class)
        tf.io.gfile.makedirs(folder)
        state = RunState(trainable, kept, job.training.nonfinite_rows)
        resumed = state.resume()
        history = History() if resumed is None else History.load(os.path.join(resumed.folder, HISTORY))
        loop = Loop(job, data, state, trainable, history, preempted)
        if resumed is None:
            _start_warm(job, trainable, history, placement)
        resumed_at = state.step
        summaries = Summaries(os.path.join(folder, "logs"))
        loop.run(summaries, progress)
        summaries.close()
        loop.finish(progress)
        loop.history.facts.update(_facts(data, loop, state, resumed_at, placement))
        loop.history.save(os.path.join(folder, HISTORY))
        checkpoint = write_weights(trainable, os.path.join(folder, "checkpoints"), job.training.nonfinite_rows)
        _write_dense(job, trainable, os.path.join(folder, DENSE))
        if resume_folder is None:
            state.discard()
        step = state.step
    return result_of(job, trainable, placement, step, checkpoint, loop.history)


def result_of(
    job: TrainingJob, trainable: Trainable, placement: Placement, step: int, checkpoint: str, history: History
) -> TrainingResult:
    """Return the result, with tables and dense part in a form that this process can export."""
    config, stacked_on = job.inputs.config, placement.stacked_on
    if placement.in_process:
        variables = trainable.tables.variables
        tables = {table.name: variables[table.name] for table in config.tables}
        return TrainingResult(tables, trainable.model, step, checkpoint, history, stacked_on)
    engine, model = restore_weights(
        checkpoint, job.model, config, job.inputs.dense, job.arguments, job.inputs.tasks, stacked_on=stacked_on
    )
    return TrainingResult(engine.embedding_tables, model, step, checkpoint, history, stacked_on)


def _facts(data: JobData, loop: Loop, state: RunState, resumed_at: int, placement: Placement) -> Json:
    return {
        "train_rows": data.rows,
        "validation_rows": data.validation_rows,
        "eval_rows": data.eval_rows,
        "steps_per_epoch": data.steps_per_epoch,
        "steps_planned": loop.total,
        "steps_done": loop.history.train[-1]["step"] if loop.history.train else 0,
        "step": state.step,
        "resumed_at": resumed_at,
        "device": placement.kind,
        "rows_per_second": _rate(loop.history),
    }


def _rate(history: History) -> float | None:
    """Compute the high median of the run's rates: of two rates, the higher one, since the first includes tracing."""
    rates = [entry["rows_per_second"] for entry in history.train]
    return float(statistics.median_high(rates)) if rates else None

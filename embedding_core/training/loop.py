"""Runs the training loop: steps, evaluations, early stopping, checkpoints, resume."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import tf_keras

from embedding_core.checkpoint.dense import DENSE, write_dense
from embedding_core.checkpoint.stacked import stack_variables, stacks_of_names
from embedding_core.engines import HostEngine
from embedding_core.errors import DataError, PreemptionError, TrainingError
from embedding_core.schema import Json
from embedding_core.storage import scratch_folder
from embedding_core.tasks import retrieval_index
from embedding_core.training.checkpoints import HISTORY, RunState
from embedding_core.training.dense_start import dense_inputs, start_dense
from embedding_core.training.device_choice import Placement, choose_placement
from embedding_core.training.eval_metrics import Evaluation, evaluate
from embedding_core.training.finished_run import restore_weights
from embedding_core.training.history import History, Summaries
from embedding_core.training.job import JobData, TrainingJob, data_errors
from embedding_core.training.kept_rows import rows_folder
from embedding_core.training.learning_rate_decay import config_with_rates
from embedding_core.training.preemption import end_if, noticed_preemption
from embedding_core.training.step import StepsDone, Trainable, new_trainable
from embedding_core.training.training_inputs import Batch
from embedding_core.training_config import EarlyStopping

_log = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int, str], None]

_STEPS_PER_ENTRY = 100  # at most, for one point of a curve: enough points to see its shape, at almost no cost
_SECONDS_PER_CALL = 1.0  # rough duration of one call of the graph; SIGTERM is noticed between calls
_STEPS_OF_FIRST_CALL = 10
_NOT_STOPPED = "early_stopping"  # key of the history's facts: why early stopping had no effect
_WARM_START = "warm_start"  # key of the history's facts: the report of `start_dense`
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
    """

    tables: Mapping[str, tf.Variable]
    model: tf_keras.Model
    step: int
    checkpoint: str
    history: History


def _check_classes(job: TrainingJob, positives: Sequence[int], rows: int) -> None:
    makes_negatives = job.training.negatives is not None or job.training.softmax is not None
    for at, (task, count) in enumerate(zip(job.inputs.tasks, positives, strict=True)):
        if not task.is_binary:
            continue
        draws = makes_negatives and at == retrieval_index(job.inputs.tasks)
        if not draws and count in {0, rows}:
            raise DataError(
                f"the label {task.key!r} is {int(bool(count))} in each of the {rows} rows trained on: a model "
                "needs both classes; check the label, or configure `negatives` for data that holds positives only."
            )
        if count == 0:
            raise DataError(
                f"the label {task.key!r} is 0 in each of the {rows} rows: there are no positives; check the label."
            )


class _Loop:
    """One run of the loop."""

    def __init__(
        self,
        job: TrainingJob,
        data: JobData,
        state: RunState,
        trainable: Trainable,
        history: History,
        preempted: Callable[[], bool],
    ) -> None:
        self._job, self._data, self._state, self._trainable = job, data, state, trainable
        training = job.training
        self.total = data.steps
        once = data.steps_per_epoch if training.epochs else max(1, self.total // 10)
        self._eval_every = training.eval_every or once
        self._save_every = training.checkpoint_every or self._eval_every
        self._checked = self._finishing = False
        self.history = history
        self._seconds_before = history.seconds
        self._preempted = preempted
        self._steps_per_call = _STEPS_OF_FIRST_CALL

    def run(self, summaries: Summaries, progress: Progress | None) -> None:
        """Train to the last step or until early stopping.

        Raises:
          PreemptionError: SIGTERM came; the state is saved.
        """
        begun = time.monotonic()
        if self._state.step == 0 and _WARM_START in self.history.facts:
            self._evaluate_start(summaries)
        if self._evaluation_due(self._state.step) and not self.history.has_eval(self._state.step):
            self._evaluate_and_save(self._state.step, summaries)  # SIGTERM interrupted it in the run that goes on
        if progress is not None:
            progress(self._state.step, self.total, "")
        batches = iter(self._data.train(self._state.step))
        while self._state.step < self.total and not self._stopped():
            start, since = self._state.step, time.monotonic()
            done = self._run_steps(batches, self._next_event(start) - start)
            if len(done.losses):
                step, loss, rate = self._state.step, float(np.mean(done.losses)), done.rows / (time.monotonic() - since)
                self.history.add_train(step, loss, rate)
                summaries.add_train(step, loss, rate)
                self.history.seconds = self._seconds_before + time.monotonic() - begun
                if step == self._next_event(start):
                    self._evaluate_and_save(step, summaries)
                if progress is not None:
                    progress(step, self.total, f"loss {loss:.4f}, {rate:,.0f} rows/s in {len(done.losses):,} steps")
            if self._preempted():
                self._save_and_stop()

    def _next_event(self, step: int) -> int:
        """Compute the next step after which there is something to do besides training."""
        every = (self._eval_every, self._save_every, self._data.steps_per_epoch)
        return min(self.total, step + _STEPS_PER_ENTRY, *((step // n + 1) * n for n in every))

    def finish(self, progress: Progress | None) -> None:
        """Restore the best state, train it on the validation part if the settings say so, and record its evaluation.

        A run that is killed here repeats all of this, from the state after the last step.

        Raises:
          PreemptionError: SIGTERM came.
        """
        begun = time.monotonic()
        self._state.save(self.history.to_json())
        self._finishing = True
        self._state.restore_best()
        step = self._state.step
        steps = self._data.validation_steps(step)
        if steps:
            self._train_on_validation(steps, progress)
            self._trainable.step.assign(step)
            self.history.facts["validation_steps"] = steps
        self.history.add_final(step, self._measure(self._data.eval()) if steps else None)
        self.history.seconds += time.monotonic() - begun

    def _train_on_validation(self, steps: int, progress: Progress | None) -> None:
        batches = iter(self._data.train_on_validation())
        for start in range(0, steps, _STEPS_PER_ENTRY):
            if progress is not None:
                progress(self._state.step, self.total, f"step {start} of {steps} on the validation part")
            self._run_steps(batches, min(_STEPS_PER_ENTRY, steps - start))
            if self._preempted():
                self._save_and_stop()

    def _save_and_stop(self) -> None:
        """Save the state and stop; a state that `finish` made is not saved."""
        if self._finishing:
            raise PreemptionError(
                "SIGTERM came while the chosen state was trained on the validation part or evaluated: start the same "
                "run again to finish it."
            )
        self._state.save(self.history.to_json())
        raise PreemptionError(
            f"SIGTERM came: the state after step {self._state.step} of {self.total} is saved; start the same run again "
            "to continue from there."
        )

    def _run_steps(self, batches: Iterator[Batch], steps: int) -> StepsDone:
        """Train for `steps` steps, or fewer if SIGTERM comes, in calls short enough to notice SIGTERM."""
        done = StepsDone(np.zeros(0, np.float32), 0, 0, True)
        while len(done.losses) < steps and not self._preempted():
            count, since = min(self._steps_per_call, steps - len(done.losses)), time.monotonic()
            part = self._call(batches, count)
            losses = np.concatenate([done.losses, part.losses])
            done = StepsDone(losses, done.rows + part.rows, done.positives + part.positives, True)
            seconds = (time.monotonic() - since) / count
            self._steps_per_call = max(1, min(_STEPS_PER_ENTRY, int(_SECONDS_PER_CALL / seconds)))
        return done

    def _call(self, batches: Iterator[Batch], steps: int) -> StepsDone:
        first = self._state.step + 1
        dense = self._job.inputs.dense
        with data_errors():
            run = self._trainable.run(batches, tf.constant(steps), tf.constant(len(dense)))
        done = StepsDone(*(part.numpy() for part in run))
        if not done.finite.all():
            labels = [f"{task.key} (label)" for task in self._job.inputs.tasks]
            names = [*dense, *labels, f"{self._job.inputs.weight} (weight)"]
            bad = [name for name, finite in zip(names, done.finite, strict=True) if not finite]
            raise DataError(
                f"{', '.join(map(repr, bad))} is NaN or infinite in steps {first} to {first + steps - 1}: fill missing "
                "values in `preprocessing_fn`."
            )
        finite = np.isfinite(done.losses)
        if not finite.all():
            at = int(np.argmin(finite))
            rate = self._job.training.dense_optimizer.learning_rate
            raise TrainingError(
                f"the loss of step {first + at} is {done.losses[at]}: lower the learning rates "
                f"({rate} of the dense part), or look for extreme values in the data."
            )
        self._state.seen_rows.assign_add(done.rows)
        self._state.seen_positives.assign_add(np.reshape(done.positives, self._state.seen_positives.shape))
        return done

    def _evaluate_and_save(self, step: int, summaries: Summaries) -> None:
        """Do what is due after `step` steps: check the classes, evaluate, save a checkpoint."""
        if not self._checked and (step >= self._data.steps_per_epoch or step == self.total):
            _check_classes(
                self._job,
                np.atleast_1d(self._state.seen_positives.numpy()).tolist(),
                int(self._state.seen_rows.numpy()),
            )
            self._checked = True
        if self._evaluation_due(step):
            self._evaluate(step, summaries)
        if step % self._save_every == 0 or step == self.total:
            self._state.save(self.history.to_json())

    def _evaluation_due(self, step: int) -> bool:
        return step > 0 and (step % self._eval_every == 0 or step == self.total)

    def _until_preempted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            if self._preempted():
                self._save_and_stop()
            yield batch

    def _measure(self, batches: Iterable[Batch]) -> Evaluation:
        with data_errors():
            return evaluate(self._trainable, self._until_preempted(batches))

    def _evaluate_start(self, summaries: Summaries) -> None:
        """Evaluate the state that the run starts from; early stopping does not count it."""
        if not self.history.has_eval(0):
            result = self._measure(self._data.eval())
            self.history.add_eval(0, result)
            summaries.add_eval(0, result)

    def _evaluate(self, step: int, summaries: Summaries) -> None:
        """Evaluate validation part and eval split before recording either: SIGTERM must not leave half a record."""
        batches = self._data.validation()
        validation = None if batches is None else self._measure(batches)
        result = self._measure(self._data.eval())
        self.history.add_eval(step, result)
        summaries.add_eval(step, result)
        if validation is not None:
            self.history.add_validation(step, validation)
            summaries.add_validation(step, validation)
        if self._job.training.early_stopping is not None:
            self._judge(step, self._job.training.early_stopping, validation)

    def _judge(self, step: int, stopping: EarlyStopping, validation: Evaluation | None) -> None:
        """Count an evaluation for early stopping; if its figure is undefined, training goes on to the last step."""
        metric = "loss" if self._job.training.softmax else stopping.metric_of(self._job.inputs.tasks)
        state, value = self._state, math.nan if validation is None else float(getattr(validation, metric))
        if math.isnan(value):
            is_new = _NOT_STOPPED not in self.history.facts
            self.history.facts[_NOT_STOPPED] = (
                f"`{metric}` of the {self._data.validation_rows} rows of the validation part is undefined: "
                "all are of one class, or their weights are 0. Early stopping had no effect; raise "
                "`early_stopping.validation_fraction`, or set `early_stopping` to null."
            )
            if is_new:
                _log.warning(self.history.facts[_NOT_STOPPED])
        elif stopping.is_better(metric, value, float(state.best_value.numpy())):
            state.best_value.assign(value)
            state.best_step.assign(step)
            state.waited.assign(0)
            state.save_best()
        else:
            state.waited.assign_add(1)

    def _stopped(self) -> bool:
        stopping = self._job.training.early_stopping
        return stopping is not None and int(self._state.waited.numpy()) >= stopping.patience


def _make_trainable(job: TrainingJob, data: JobData, placement: Placement) -> Trainable:
    tf_keras.utils.set_random_seed(job.training.seed)
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
        limits=job.limits if placement.takes_limits else None,
    )


def _warm_start(
    job: TrainingJob,
    fill: Callable[[Mapping[str, tf.Variable]], None],
    trainable: Trainable,
    placement: Placement,
) -> None:
    """Fill the tables; fill tables in a TPU's memory by restoring a checkpoint, since nothing else reaches them."""
    tables = trainable.tables
    if tables.variables:
        fill(tables.variables)
        return
    if trainable.table_optimizers:
        _log.warning(
            "the tables start from the given rows, but not from their slots, which Keras' optimizers hold here"
        )
    host = HostEngine(config_with_rates(job.inputs.config, job.training, trainable.step, 1))
    fill(host.table_variables)
    source, slice_ = host.tables, placement.slice_of_hardware
    if slice_ is not None:  # TensorFlow's class restores stacks as they lie in memory
        holder: Any = tables.holder
        stacks = stacks_of_names(holder.embedding_tables, job.inputs.config, slice_)
        source = stack_variables(host.table_variables, stacks, slice_.shards)
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
        inputs=dense_inputs(job.inputs.config, job.inputs.dense, job.inputs.tasks),
        ranges=job.ranges,
        optimizer=job.training.dense_optimizer.name,
    )
    history.facts[_WARM_START] = report
    for part in ("dense", "optimizer"):
        if report[part] == "new":
            _log.warning("warm start: the %s starts from new values: %s", _PARTS[part], report[f"{part}_reason"])


def _write_dense(job: TrainingJob, trainable: Trainable, folder: str) -> None:
    """Save the dense part for runs that start from this one."""
    inputs = dense_inputs(job.inputs.config, job.inputs.dense, job.inputs.tasks)
    name = job.training.dense_optimizer.name
    write_dense(folder, trainable.model, trainable.optimizer, name=name, inputs=inputs, ranges=job.ranges)


def train(
    job: TrainingJob,
    folder: str,
    *,
    resume_folder: str | None = None,
    rows: str | None = None,
    progress: Progress | None = None,
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
      rows: folder that keeps encoded rows for later trainings of the same `kept_rows.rows_key`; None keeps none.
      progress: called at least every 100 steps with the steps done, the total steps, and the state in words.

    Returns:
      The trained model.

    Raises:
      DataError: a split is empty, rows cannot be read, or a label is invalid for its task or the same in all rows.
      TrainingError: the loss or a row of a table is not finite.
      CheckpointError: there are checkpoints to resume from, but none passes verification.
      PreemptionError: SIGTERM came; the state is saved, and the same call continues from it.
    """
    placement = choose_placement(job.training)
    with placement.scope(), noticed_preemption() as preempted, rows_folder(rows) as encoded:
        data = JobData(job, placement, encoded, lambda: end_if(preempted))
        trainable = _make_trainable(job, data, placement)
        kept = resume_folder or os.path.join(folder, "resume")
        tf.io.gfile.makedirs(folder)
        state = RunState(trainable, kept, job.training.nonfinite_rows)
        resumed = state.resume()
        history = History() if resumed is None else History.load(os.path.join(resumed.folder, HISTORY))
        loop = _Loop(job, data, state, trainable, history, preempted)
        if resumed is None:
            _start_warm(job, trainable, history, placement)
        resumed_at = state.step
        summaries = Summaries(os.path.join(folder, "logs"))
        loop.run(summaries, progress)
        summaries.close()
        loop.finish(progress)
        loop.history.facts.update(_facts(data, loop, state, resumed_at, placement))
        loop.history.save(os.path.join(folder, HISTORY))
        checkpoint = state.write(os.path.join(folder, "checkpoints"))
        _write_dense(job, trainable, os.path.join(folder, DENSE))
        if resume_folder is None:
            state.discard()
        step = state.step
    tables, model = _result(job, trainable, placement, checkpoint)
    return TrainingResult(tables, model, step, checkpoint, loop.history)


def _result(
    job: TrainingJob, trainable: Trainable, placement: Placement, checkpoint: str
) -> tuple[Mapping[str, tf.Variable], tf_keras.Model]:
    """Return the tables by name and the dense part, in a form that this process can export."""
    config = job.inputs.config
    if not placement.on_tpu:
        variables = trainable.tables.variables
        return {table.name: variables[table.name] for table in config.tables}, trainable.model
    engine, model = restore_weights(checkpoint, job.model, config, job.inputs.dense, job.arguments, job.inputs.tasks)
    return engine.embedding_tables, model


def _facts(data: JobData, loop: _Loop, state: RunState, resumed_at: int, placement: Placement) -> Json:
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

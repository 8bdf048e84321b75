"""Runs the training loop: steps, evaluations, early stopping, checkpoints, resume, SIGTERM; keeps its history."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import tensorflow as tf

from embedding_core.errors import DataError, PreemptionError, TrainingError
from embedding_core.schema import Json
from embedding_core.tasks import retrieval_index
from embedding_core.training.eval_metrics import Evaluation, evaluate
from embedding_core.training.finished_run import RunState
from embedding_core.training.job import JobData, TrainingJob
from embedding_core.training.step import StepsDone, Trainable
from embedding_core.training.training_inputs import Batch, data_errors
from embedding_core.training_config import EarlyStopping

# Records curves, rates and times of a training run, as JSON and for TensorBoard.


def _number(value: float) -> float | None:
    """Replace NaN and infinity, which JSON does not have, by None."""
    return value if math.isfinite(value) else None


def _entry(step: int, result: Evaluation) -> Json:
    entry: Json = {"step": step, "loss": _number(result.loss), "auc": _number(result.auc)}
    if len(result.tasks) > 1:
        entry["tasks"] = {
            name: {"loss": _number(figures.loss), "auc": _number(figures.auc)} for name, figures in result.tasks.items()
        }
    if result.metrics:
        entry["metrics"] = {name: _number(value) for name, value in result.metrics.items()}
    return entry


@dataclasses.dataclass
class History:
    """Curves of a run.

    Attributes:
      train: entries of `step`, `loss` (mean since the previous entry), `rows_per_second`.
      evals: entries of `step`, `loss` and `auc` (null if the eval split has one class, or no task is binary). With
        several tasks, `tasks` has loss and auc of each; if the model's module has `eval_metrics`, `metrics` has its
        figures.
      validations: entries as in `evals`, for the validation part of the train split; empty without early stopping.
      final: entry as in `evals` for the state that is returned. Its step is the chosen one; steps that trained on the
        validation part after it are not counted. Empty in runs of previous releases.
      seconds: seconds spent training, including those of the runs that this one resumed.
      facts: other values, such as numbers of rows, steps per epoch and the step of the final state.
    """

    train: list[Json] = dataclasses.field(default_factory=list)
    evals: list[Json] = dataclasses.field(default_factory=list)
    validations: list[Json] = dataclasses.field(default_factory=list)
    final: Json = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    facts: Json = dataclasses.field(default_factory=dict)

    def add_train(self, step: int, loss: float, rows_per_second: float) -> None:
        """Record the mean loss and the rate of the steps since the previous entry."""
        self.train.append({"step": step, "loss": _number(loss), "rows_per_second": round(rows_per_second, 1)})

    def add_eval(self, step: int, result: Evaluation) -> None:
        """Record an evaluation."""
        self.evals.append(_entry(step, result))

    def add_validation(self, step: int, result: Evaluation) -> None:
        """Record an evaluation of the validation part."""
        self.validations.append(_entry(step, result))

    def has_eval(self, step: int) -> bool:
        """Return whether there was an evaluation after that step."""
        return any(entry["step"] == step for entry in self.evals)

    def add_final(self, step: int, result: Evaluation | None) -> None:
        """Record the evaluation of the state that is returned; None is the one recorded after `step`."""
        known = next((entry for entry in self.evals if entry["step"] == step), {})
        self.final = known if result is None else _entry(step, result)

    def to_json(self) -> str:
        """Return the history as JSON, which `load` reads."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def save(self, path: str) -> None:
        """Write the history as JSON, and replace the file in one rename."""
        with tf.io.gfile.GFile(path + ".new", "w") as file:
            file.write(self.to_json())
        tf.io.gfile.rename(path + ".new", path, overwrite=True)

    @classmethod
    def load(cls, path: str) -> History:
        """Read what `save` wrote; an empty history if the file is missing or damaged."""
        if not tf.io.gfile.exists(path):
            return cls()
        with tf.io.gfile.GFile(path) as file:
            try:
                return cls(**json.loads(file.read()))
            except (ValueError, TypeError):
                return cls()


class Summaries:
    """Writes curves for TensorBoard, in the folders `train`, `validation` and `eval`."""

    def __init__(self, folder: str) -> None:
        """Open the writers of the three folders below `folder`."""
        self._writers = {
            name: tf.summary.create_file_writer(os.path.join(folder, name)) for name in ("train", "validation", "eval")
        }

    def add_train(self, step: int, loss: float, rows_per_second: float) -> None:
        """Write loss and rate of the last steps."""
        with self._writers["train"].as_default(step=step):
            tf.summary.scalar("loss", loss)
            tf.summary.scalar("rows_per_second", rows_per_second)

    def add(self, part: str, step: int, result: Evaluation) -> None:
        """Write the figures of an evaluation of "eval", the eval split, or of "validation", the validation part."""
        with self._writers[part].as_default(step=step):
            tf.summary.scalar("loss", result.loss)
            tf.summary.scalar("auc", result.auc)
            for name, figures in result.tasks.items() if len(result.tasks) > 1 else ():
                tf.summary.scalar(f"loss/{name}", figures.loss)
                tf.summary.scalar(f"auc/{name}", figures.auc)
            for name, value in result.metrics.items():
                tf.summary.scalar(f"metrics/{name}", value)

    def close(self) -> None:
        """Flush and close the files."""
        for writer in self._writers.values():
            writer.close()


# Runs the training loop: steps, evaluations, early stopping, checkpoints, resume.

_log = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int, str], None]

_STEPS_PER_ENTRY = 100  # at most, for one point of a curve: enough points to see its shape, at almost no cost
_STEPS_OF_FIRST_CALL = 10
_NOT_STOPPED = "early_stopping"  # key of the history's facts: why early stopping had no effect
WARM_START = "warm_start"  # key of the history's facts: the report of `start_dense`
# AUC often still rises when the probabilities are too far from the labels already (decision 12).
_LOSS_ABOVE_LOWEST = 0.01


def _check_classes(job: TrainingJob, positives: Sequence[int], rows: int) -> None:
    for at, (task, count) in enumerate(zip(job.inputs.tasks, positives, strict=True)):
        if not task.is_binary:
            continue
        draws = job.training.draws_negatives and at == retrieval_index(job.inputs.tasks)
        if not draws and count in {0, rows}:
            raise DataError(
                f"the label {task.key!r} is {int(bool(count))} in each of the {rows} rows trained on: a model "
                "needs both classes; check the label, or configure `negatives` for data that holds positives only."
            )
        if count == 0:
            raise DataError(
                f"the label {task.key!r} is 0 in each of the {rows} rows: there are no positives; check the label."
            )


class Loop:
    """The steps of one run, and what is due between them.

    Attributes:
      total: number of planned steps.
      history: curves and figures of the run.
    """

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
        self._per_entry = _STEPS_PER_ENTRY * trainable.parallel
        self._steps_per_call = _STEPS_OF_FIRST_CALL * trainable.parallel

    def run(self, summaries: Summaries, progress: Progress | None) -> None:
        """Train to the last step or until early stopping.

        Raises:
          PreemptionError: SIGTERM came; the state is saved.
        """
        begun = time.monotonic()
        if self._state.step == 0 and WARM_START in self.history.facts:
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
        return min(self.total, step + self._per_entry, *((step // n + 1) * n for n in every))

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
        """Train one pass, at the learning rates of the epoch before the chosen step, as if it were a part of it."""
        done, decay = self._state.step, self._trainable.decay
        if decay is not None:
            decay.repeat(done, min(done, self._data.steps_per_epoch), steps)
        batches = iter(self._data.train_on_validation())
        for start in range(0, steps, self._per_entry):
            if progress is not None:
                progress(self._state.step, self.total, f"step {start} of {steps} on the validation part")
            self._run_steps(batches, min(self._per_entry, steps - start))
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
            self._steps_per_call = max(1, min(self._per_entry, int(self._trainable.seconds_per_call / seconds)))
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
                f"{', '.join(map(repr, bad))} is NaN or infinite in {self._named(first, first + steps - 1)}: fill "
                "missing values in `preprocessing_fn`."
            )
        finite = np.isfinite(done.losses)
        if not finite.all():
            at = int(np.argmin(finite))
            rate = self._job.training.dense_optimizer.learning_rate
            raise TrainingError(
                f"the loss of {self._named(first + at, first + at)} is {done.losses[at]}: lower the learning rates "
                f"({rate} of the dense part), or look for extreme values in the data."
            )
        self._state.seen_rows.assign_add(done.rows)
        self._state.seen_positives.assign_add(np.reshape(done.positives, self._state.seen_positives.shape))
        return done

    def _named(self, first: int, last: int) -> str:
        if self._finishing:
            return "the pass over the validation part"
        return f"step {first}" if first == last else f"steps {first} to {last}"

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
            summaries.add("eval", 0, result)

    def _evaluate(self, step: int, summaries: Summaries) -> None:
        """Evaluate validation part and eval split before recording either: SIGTERM must not leave half a record."""
        batches = self._data.validation()
        validation = None if batches is None else self._measure(batches)
        result = self._measure(self._data.eval())
        self.history.add_eval(step, result)
        summaries.add("eval", step, result)
        if validation is not None:
            self.history.add_validation(step, validation)
            summaries.add("validation", step, validation)
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
                "all are of one class, their weights are 0, or a prediction is NaN. Early stopping had no effect; "
                "raise `early_stopping.validation_fraction`, or set `early_stopping` to null."
            )
            if is_new:
                _log.warning(self.history.facts[_NOT_STOPPED])
            return
        losses = {
            entry["step"]: math.inf if entry["loss"] is None else entry["loss"] for entry in self.history.validations
        }
        if self._is_best(stopping, metric, value, losses):
            state.best_value.assign(value)
            state.best_step.assign(step)
            state.waited.assign(0)
            state.save_best()
        elif metric == "auc" and losses[step] == min(losses.values()):
            state.waited.assign(0)  # the AUC of few rows jumps while the model still learns
        else:
            state.waited.assign_add(1)

    def _is_best(
        self, stopping: EarlyStopping, metric: Literal["auc", "loss"], value: float, losses: Mapping[int, float]
    ) -> bool:
        """Return whether the evaluated state replaces the best one.

        By AUC, its loss must be near the lowest so far; of equal AUCs, that with the lower loss is better. A best state
        whose loss is not near the lowest any more is replaced by the first one whose loss is.
        """
        state = self._state
        best = float(state.best_value.numpy())
        is_better = stopping.is_better(metric, value, best)
        if metric == "loss":
            return is_better
        lowest = min(losses.values())
        bound = lowest + _LOSS_ABOVE_LOWEST * abs(lowest)
        loss, of_best = losses[state.step], losses.get(int(state.best_step.numpy()), math.inf)
        return loss <= bound and (is_better or of_best > bound or (value == best and loss < of_best))

    def _stopped(self) -> bool:
        stopping = self._job.training.early_stopping
        return stopping is not None and int(self._state.waited.numpy()) >= stopping.patience


# Notices SIGTERM, which schedulers send before they take the machine away.


@contextlib.contextmanager
def noticed_preemption() -> Iterator[Callable[[], bool]]:
    """Record SIGTERM instead of ending the process, until the block ends.

    Only the main thread of a process may set a signal handler; in another thread SIGTERM is not recorded and keeps its
    effect.

    Yields:
      A function that returns whether SIGTERM has come.
    """
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return

    def notice(number: int, frame: object) -> None:
        came.set()

    before = signal.signal(signal.SIGTERM, notice)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGTERM, before)


def end_if(preempted: Callable[[], bool]) -> None:
    """End a training that has not taken a step yet, if SIGTERM has come.

    Raises:
      PreemptionError: SIGTERM has come.
    """
    if preempted():
        raise PreemptionError(
            "SIGTERM came before the first step of this process; nothing is lost: start the same run again to continue."
        )

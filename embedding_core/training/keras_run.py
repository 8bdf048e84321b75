"""Lets a user train with Keras' own `fit`, and writes the result as the training loop does."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import tensorflow as tf
import tf_keras

from embedding_core.checkpoint.dense import DENSE, write_dense
from embedding_core.errors import ConfigError
from embedding_core.layer import TPUEmbedding
from embedding_core.model_inputs import build_model, call_model
from embedding_core.tasks import Task
from embedding_core.tracing import as_written
from embedding_core.training.dense_start import dense_inputs
from embedding_core.training.device_choice import Batches, choose_placement
from embedding_core.training.eval_metrics import evaluate
from embedding_core.training.finished_run import HISTORY, write_weights
from embedding_core.training.job import JobData, TrainingJob
from embedding_core.training.loop import History
from embedding_core.training.row_stream import Passes
from embedding_core.training.step import Trainable, dense_optimizer
from embedding_core.training.training_inputs import Batch, UserFunctions, data_errors
from embedding_core.training.training_run import TrainingResult, result_of

_OPTIMIZER = "of a run_fn"
"""The recorded name of the dense optimizer: its state is not kept."""


@as_written
def _with_share_as_weight(batch: Batch) -> Batch:
    return cast(Batch, {**batch, "weight": batch["weight"] * batch["share"]})


class EmbeddingModel(tf_keras.Model):
    """The layer of tables and the dense part as one Keras model: compile it, and `fit` it to `KerasRun.train_data`.

    With one task, losses and metrics get the label `[B, 1]` and the output `[B, width]`; with several, mappings by the
    name of the task. Sample weights are those of the rows; a row without a label has the label 0 and the weight 0.

    Attributes:
      embedding: the layer of tables; it trains each table by the table's own optimizer.
      dense: the dense part.
    """

    def __init__(self, embedding: TPUEmbedding, dense: tf_keras.Model, tasks: Sequence[Task]) -> None:
        """Take the parts of the model."""
        super().__init__()
        self.embedding = embedding
        self.dense = dense
        self._places = MappingProxyType({task.name: at for at, task in enumerate(tasks)})
        self._of_tasks = MappingProxyType({task.name: task for task in tasks})

    def call(self, inputs: Batch, training: bool = False) -> Any:
        """Compute the outputs of a batch: `[B, width]`, or a mapping of these by task."""
        numbers = {**inputs["dense"], **inputs.get("lengths", {})}
        tasks = tuple(self._of_tasks.values())
        outputs = call_model(self.dense, self.embedding(inputs["ids"]), numbers, tasks, training=training)
        return outputs if len(tasks) > 1 else outputs[tasks[0].name]

    def train_step(self, data: Batch) -> Any:
        """Train on a batch."""
        return super().train_step(self._parts(data))

    def test_step(self, data: Batch) -> Any:
        """Evaluate a batch."""
        return super().test_step(self._parts(data))

    def _parts(self, batch: Batch) -> tuple[Any, Any, Any]:
        inputs = {name: batch[name] for name in ("ids", "dense", "lengths") if name in batch}
        labels, weights = {}, {}
        for name, at in self._places.items():
            label = batch["label"][:, at : at + 1]
            known = ~tf.math.is_nan(label)
            labels[name] = tf.where(known, label, tf.zeros_like(label))
            weights[name] = (batch["weight"] * tf.cast(known, tf.float32))[:, 0]
        if len(labels) > 1:
            return inputs, labels, weights
        ((label,), (weight,)) = labels.values(), weights.values()
        return inputs, label, weight


class KerasRun:
    """One training by a user's own code.

    Attributes:
      steps_per_epoch: number of batches of one pass over the train split.
      eval_steps: number of batches of `eval_data`.
    """

    def __init__(self, job: TrainingJob) -> None:
        """Choose the device, and count the rows.

        Raises:
          ConfigError: the job has a setting that needs the trainer's own loop.
          DataError: a split is empty or cannot be read.
        """
        training = job.training
        for name, is_given in (
            ("softmax", training.softmax is not None),
            ("warm_start", job.warm_start is not None),
            ("decay", training.decay != "none"),
            ("embedding_l2", training.embedding_l2 != 0),
            ("class_weights", training.class_weights != (1.0, 1.0)),
        ):
            if is_given:
                raise ConfigError(f"`{name}` is given, which a run_fn of your own does not support: leave it out.")
        # Keras' callbacks stop a fit, so no rows are held back.
        self._job = job = dataclasses.replace(job, training=job.training.replace(early_stopping=None))
        self._placement = choose_placement(job.training)
        if self._placement.not_for_keras:
            raise ConfigError(
                f"{self._placement.not_for_keras} trains by the trainer's own loop: leave out `model.run_fn`, or "
                "choose another `strategy` or TPU."
            )
        self._begun = time.monotonic()
        with self.scope():
            self._data = JobData(job, self._placement)
        self.steps_per_epoch = self._data.steps_per_epoch
        self.eval_steps = self._data.eval_steps

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which to make, compile and fit the model."""
        return self._placement.scope()

    def keras_model(self) -> EmbeddingModel:
        """Make the model: tables with the configured optimizers, and the dense part that `build` returns."""
        job = self._job
        tf_keras.utils.set_random_seed(job.training.seed & 0xFFFFFFFF)
        embedding = TPUEmbedding(
            job.inputs.config,
            None,
            batch_size=self._data.rows_per_replica,
            table_update="engine",
            seed=job.training.seed,
            name="embedding",
        )
        embedding.build(None)
        dense = build_model(job.model, job.inputs.config, job.inputs.dense, job.arguments, job.inputs.tasks)
        return EmbeddingModel(embedding, dense, job.inputs.tasks)

    def train_data(self) -> Batches:
        """Return an endless stream of batches, shuffled as configured.

        Keras takes the mean over a batch. In the last, short batch of an epoch, weights are therefore less by its share
        of a whole batch, so that each row counts the same; on a TPU, which pads this batch, they are not.
        """
        batches = self._data.train(0)
        return batches if self._placement.on_tpu else batches.map(_with_share_as_weight)

    def eval_data(self) -> Batches:
        """Return the batches of the eval split, `eval_steps` of them."""
        batches = self._data.eval()
        return batches.dataset if isinstance(batches, Passes) else batches

    def save(self, model: EmbeddingModel, folder: str, curves: Mapping[str, Sequence[float]]) -> TrainingResult:
        """Evaluate the model, and write what the trainer's own loop writes: checkpoint, dense part and history.

        Args:
          model: the trained model, made by `keras_model` or of the same two parts.
          folder: folder that gets `checkpoints/`, `dense/` and `history.json`.
          curves: `History.history` of Keras: the value of each curve after each epoch.

        Raises:
          ConfigError: the model does not have the two parts, or was not trained.
          TrainingError: a row of a table is not finite.
        """
        embedding, dense = getattr(model, "embedding", None), getattr(model, "dense", None)
        if not isinstance(embedding, TPUEmbedding) or not isinstance(dense, tf_keras.Model):
            raise ConfigError(
                f"`save` got {type(model).__name__}: it must have the layer of tables as `embedding` and the dense "
                "part as `dense`, as `keras_model` makes them."
            )
        step = 0 if model.optimizer is None else int(model.optimizer.iterations.numpy())
        if not step:
            raise ConfigError("`save` got a model that was not trained: call `fit`, or step the optimizer it has.")
        with self.scope():
            trainable = self._trainable(embedding, dense, step)
            tf.io.gfile.makedirs(folder)
            history = self._history(trainable, step, curves)
            history.save(os.path.join(folder, HISTORY))
            checkpoint = self._write(trainable, folder)
        return result_of(self._job, trainable, self._placement, step, checkpoint, history)

    def _trainable(self, embedding: TPUEmbedding, dense: tf_keras.Model, step: int) -> Trainable:
        job = self._job
        count = tf.Variable(step, dtype=tf.int64, trainable=False, name="step")
        optimizer = dense_optimizer(job.training, None)
        functions, hosts = UserFunctions(job.model), self._data.hosts_apart
        return Trainable(embedding, dense, optimizer, job.training, job.inputs.tasks, count, {}, hosts, functions)

    def _history(self, trainable: Trainable, step: int, curves: Mapping[str, Sequence[float]]) -> History:
        """Make the history: the loss of each epoch, and an evaluation of the final state."""
        seconds = time.monotonic() - self._begun
        history = History(seconds=seconds)
        losses = list(curves.get("loss", ()))
        for epoch, loss in enumerate(losses, 1):
            rate = self._data.rows * len(losses) / seconds
            history.add_train(step * epoch // len(losses), float(loss), rate)
        with data_errors():
            history.add_eval(step, evaluate(trainable, self._data.eval()))
        history.add_final(step, None)
        history.facts.update(
            {
                "train_rows": self._data.rows,
                "eval_rows": self._data.eval_rows,
                "steps_per_epoch": self.steps_per_epoch,
                "steps_done": step,
                "step": step,
                "device": self._placement.kind,
            }
        )
        return history

    def _write(self, trainable: Trainable, folder: str) -> str:
        """Write the checkpoint and the dense part; return the checkpoint's path."""
        job = self._job
        checkpoint = write_weights(trainable, os.path.join(folder, "checkpoints"), job.training.nonfinite_rows)
        inputs = dense_inputs(job.inputs)
        dense = os.path.join(folder, DENSE)
        write_dense(dense, trainable.model, trainable.optimizer, name=_OPTIMIZER, inputs=inputs, ranges=job.ranges)
        return checkpoint

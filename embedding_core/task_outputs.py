"""Computes the losses and the served outputs of tasks from the outputs of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from embedding_core.tasks import CLASSES, LOGIT, Task, prediction_name, served_name


def row_losses(task: Task, label: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Compute the loss of each row.

    Args:
      task: what the label is.
      label: `[B, 1]`, for a multiclass task the position of the class; NaN for a row without this label: its loss is 0.
      output: `[B, 1]`, what the model computes for the task: a logit, a number, or the logarithm of an expected count;
        of a multiclass task `[B, classes]`, a logit for each class.

    Returns:
      `[B, 1]`: binary cross-entropy, softmax cross-entropy, squared or absolute error, Huber's loss (Huber, 1964; half
      of the squared error up to `huber_delta`), or the negative Poisson log-likelihood without its constant,
      ``exp(x) - y x``.
    """
    missing = tf.math.is_nan(label)
    losses = _losses(task, tf.where(missing, tf.zeros_like(label), label), output)
    return tf.where(missing, tf.zeros_like(losses), losses)


def _losses(task: Task, label: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    if task.is_binary:
        return tf.nn.sigmoid_cross_entropy_with_logits(label, output)
    if task.is_multiclass:
        classes = tf.cast(label[:, 0], tf.int32)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(classes, output)[:, tf.newaxis]
    if task.kind == "count":
        return tf.exp(output) - label * output
    error = tf.abs(output - label)
    if task.loss == "absolute":
        return error
    if task.loss == "squared":
        return tf.square(error)
    delta = tf.constant(task.huber_delta, error.dtype)
    return tf.where(error <= delta, 0.5 * tf.square(error), delta * (error - 0.5 * delta))


def served_outputs(tasks: Sequence[Task], outputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Compute what the signatures return, by name.

    * A binary task has `logit` and `probability`, float32 `[B, 1]`.
    * A multiclass task has `classes`, string, and `probabilities`, float32, both `[B, classes]`.
    * Any other task has `prediction`, `[B, 1]`: the number, or the expected count.

    If there are several tasks, each name starts with the name of the task and `_`. Every output, even `classes`, has a
    row for each row of the request, because servers that batch requests split every output by rows.

    Args:
      tasks: the model's tasks.
      outputs: what the model computes, by the name of the task.
    """
    served = {}
    for task in tasks:
        output = outputs[task.name]
        if task.is_binary:
            served[served_name(tasks, task, LOGIT)] = output
        if task.is_multiclass:
            shape = tf.shape(output)
            served[served_name(tasks, task, CLASSES)] = tf.broadcast_to(tf.constant(list(task.classes)), shape)
        served[prediction_name(tasks, task)] = prediction_of(task, output)
    return served


def prediction_of(task: Task, output: tf.Tensor) -> tf.Tensor:
    """Compute the served prediction of a task, `[B, width]`, from the output of the model."""
    if task.is_multiclass:
        return tf.nn.softmax(output)
    if not task.is_binary and task.kind != "count":
        return output
    # In float32, TensorFlow rounds sigmoid and exp differently for the last rows of a batch: equal rows would not tie.
    exact = tf.cast(output, tf.float64)
    return tf.cast(tf.sigmoid(exact) if task.is_binary else tf.exp(exact), output.dtype)

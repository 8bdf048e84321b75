"""Tests the functions that a user's module may have beside `build`."""

import math
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.tasks import Task
from embedding_core.training.training_inputs import UserFunctions

LABEL, OUTPUT = tf.constant([[1.0], [math.nan], [3.0]]), tf.constant([[2.0], [5.0], [1.0]])
STARS = Task(name="stars", kind="regression")


@pytest.fixture
def functions(monkeypatch):
    def of(source):
        module = types.ModuleType("user_functions_case")
        exec(source, module.__dict__)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return UserFunctions(module.__name__)

    return of


def test_own_loss_is_that_of_each_row_and_0_without_a_label(functions):
    found = functions("def row_loss(task, label, output): return 10 * (output - label) ** 2")
    assert found.has_row_loss
    np.testing.assert_array_equal(found.row_losses(STARS, LABEL, OUTPUT), [[10.0], [0.0], [40.0]])
    flat = functions("def row_loss(task, label, output): return (output - label)[:, 0]")
    np.testing.assert_array_equal(flat.row_losses(STARS, LABEL, OUTPUT), [[1.0], [0.0], [-2.0]])


def test_none_and_modules_without_functions_leave_the_usual_loss(functions):
    for source in ("def row_loss(task, label, output): return None", "from tf_keras import metrics as eval_metrics"):
        found = functions(source)
        np.testing.assert_array_equal(found.row_losses(STARS, LABEL, OUTPUT), [[1.0], [0.0], [4.0]])
        assert found.metrics(STARS, np.ones(1), np.ones((1, 1)), np.ones(1)) == {}


def test_metrics_get_the_rows_with_label_and_weight(functions):
    found = functions("def eval_metrics(task, label, prediction, weight): return {task: (label * prediction).sum()}")
    label, prediction, weight = np.array([2.0, math.nan, 5.0]), np.array([[3.0], [1.0], [7.0]]), np.array([1.0, 1.0, 0])
    assert found.metrics(STARS, label, prediction, weight) == {"stars": 6.0}
    classes = Task(name="mood", kind="multiclass", classes=("a", "b"))
    shapes = functions("def eval_metrics(task, label, prediction, weight): return {'columns': prediction.shape[1]}")
    assert shapes.metrics(classes, np.ones(2), np.ones((2, 2)), np.ones(2)) == {"columns": 2.0}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def row_loss(y_true, y_pred): pass", "arguments y_true, y_pred: it must have task, label, output; rename it"),
        ("def eval_metrics(label): pass", "it must have task, label, prediction, weight"),
        ("def row_loss(task, label, output): return label * [[1., 2.]]", r"shape \(3, 2\): it must return the loss of"),
        ("def eval_metrics(task, label, prediction, weight): return 0.5", "returned 0.5: it must return a number for"),
        ("def eval_metrics(task, label, prediction, weight): return {'a': 'b'}", "it must return a number for each"),
    ],
)
def test_functions_that_do_not_fit_are_refused(functions, source, words):
    def call():
        found = functions(source)
        found.row_losses(STARS, LABEL, OUTPUT)
        found.metrics(STARS, np.ones(1), np.ones((1, 1)), np.ones(1))

    with pytest.raises(ConfigError, match=words):
        call()

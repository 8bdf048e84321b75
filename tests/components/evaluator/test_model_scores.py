"""Models that are compared are evaluated on the same rows."""

import numpy as np
import pytest

from components.evaluator import own_metrics
from components.evaluator.model_scores import ModelScores, with_rows_of_all_models

pytestmark = pytest.mark.tfx


def _scores(label, prediction, known):
    known = np.array(known, float)
    return ModelScores(np.array(label, float), np.array(prediction, float), 2.0 * known, known)


def test_models_with_other_classes_are_compared_on_the_same_rows():
    """Rows of classes a, b, c and d; the new model has a, b and c, the baseline a and b, and none has d."""
    new = _scores([0, 1, 2, 0], [[0.8, 0.1, 0.1]] * 4, [1, 1, 1, 0])
    old = _scores([0, 1, 0, 0], [[0.6, 0.4]] * 4, [1, 1, 0, 0])
    made = with_rows_of_all_models({("", "kind"): new, ("baseline", "kind"): old})
    losses = {}
    for (name, _), scores in made.items():
        assert scores.known.tolist() == [1, 1, 1, 0]
        assert scores.weight.tolist() == [2, 2, 2, 0]
        losses[name] = own_metrics.class_log_losses(scores.label, scores.prediction)[:3]
        right = own_metrics.are_most_probable(scores.label, scores.prediction)[:3]
        assert right.tolist() == [1, 0, 0], name
    assert losses[""] == pytest.approx(-np.log([0.8, 0.1, 0.1]))
    assert losses["baseline"] == pytest.approx([-np.log(0.6), -np.log(0.4), 36.04], abs=0.01)


def test_one_model_and_labels_without_classes_stay_as_they_are():
    classes = _scores([0, 2], [[0.8, 0.1, 0.1]] * 2, [1, 0])
    binary = _scores([0, 1], [0.3, 0.4], [1, 1])
    given = {("", "kind"): classes, ("", "click"): binary, ("baseline", "click"): binary}
    assert with_rows_of_all_models(given) == given

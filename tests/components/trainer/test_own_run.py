"""Tests the run_fn of docs/own_model.md: Keras' `fit` on CPU and simulated TPU, and what the function must write."""

import json
import pathlib
import re
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.training.finished_run import restore_run
from tests.support.trainer_runs import eval_rows, inputs_at, run

pytestmark = pytest.mark.tfx

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "own_model.md").read_text(encoding="utf-8")
(FIT,) = [source for source in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def run_fn" in source]
UNTRAINED = """
from components.trainer.own_run import TrainerRun

def run_fn(fn_args):
    run = TrainerRun(fn_args)
    with run.scope():
        run.write(run.keras_model(), {})
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return inputs_at(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def train(inputs, tmp_path, monkeypatch):
    def with_source(source, name="run", **training):
        module = types.ModuleType("own_run_case")
        exec(source, module.__dict__)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr("tfx.components.util.udf_utils.get_fn", lambda *_: module.run_fn)  # TFX reloads modules
        settings = {"arguments": {"hidden_units": [8], "dropout": 0.0}}
        training = {"batch_size": 36, **training}
        return run(inputs, tmp_path / name, training=training, settings=settings, run_fn="own_run_case.run_fn")

    return with_source


def test_keras_fit_leaves_the_same_on_both_devices(inputs, train):
    """200 rows make 5 full batches of 36 and one of 20, which a simulated TPU pads; Keras' curve counts padding.

    Early stopping holds back none of them: `fit` has callbacks for that.
    """
    runs = []
    for strategy in ({"strategy": "cpu"}, {"strategy": "simulated_tpu", "topology": "1x2"}):
        outputs = train(FIT, strategy["strategy"], early_stopping={"validation_fraction": 0.3}, **strategy)
        folder = outputs["model_run"][0].uri
        assert not pathlib.Path(folder, "unused").exists()
        model = tf.saved_model.load(f"{outputs['model'][0].uri}/Format-Serving")
        served = model.signatures["serving_default"](eval_rows(inputs))["logit"].numpy()
        history = json.loads(pathlib.Path(folder, "history.json").read_text())
        runs.append((restore_run(folder), served, history))
        assert float(outputs["model"][0].get_string_custom_property("eval_auc")) > 0.9
        assert history["facts"]["step"] == runs[-1][0].description.step == 12
    (first, served, history), (second, other_served, other_history) = runs
    np.testing.assert_allclose(served, other_served, rtol=1e-3, atol=1e-5)
    assert history["evals"][0]["loss"] == pytest.approx(other_history["evals"][0]["loss"], rel=1e-4)
    for table, rows in first.engine.embedding_tables.items():
        np.testing.assert_allclose(rows, second.engine.embedding_tables[table], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def run_fn(fn_args): pass", "left no saved_model.pb and no training.json: end it with `TrainerRun"),
        (UNTRAINED, "a model that was not trained: call `fit`"),
        (UNTRAINED.replace("run.keras_model()", "object()"), "`save` got object: it must have the layer of tables"),
    ],
)
def test_run_fn_that_leaves_no_model_is_named(train, source, words):
    with pytest.raises(ConfigError, match=words):
        train(source)


@pytest.mark.parametrize(
    ("name", "value"),
    [("softmax", {"feature": "item"}), ("embedding_l2", 0.1)],
)
def test_setting_of_the_trainers_own_loop_is_refused(train, name, value):
    with pytest.raises(ConfigError, match=f"`{name}` is given, which a run_fn of your own does not support"):
        train(UNTRAINED, **{name: value})

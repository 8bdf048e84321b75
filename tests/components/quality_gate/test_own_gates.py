"""Gates that a user writes: QualityGate asks them, and they bless, refuse with reasons, or fail."""

import re
import sys
import types
from pathlib import Path

import pytest

from embedding_core.errors import ConfigError
from embedding_core.evaluation import Check, own_checks
from tests.components.quality_gate.test_quality_gate import judge, run  # noqa: F401

pytestmark = pytest.mark.tfx
PAGE = Path(__file__).parents[3] / "docs" / "models.md"


class EnoughRows:
    """Reads the rows of the eval split and the predictions."""

    def judge(self, model):
        sizes = [(len(batch["label"]), len(predicted["label"])) for batch, predicted in model.batches()]
        rows = sum(labels for labels, _ in sizes)
        assert all(labels == predictions for labels, predictions in sizes)
        yield Check(name="rows", value=rows, bound="at least 1000", met=rows >= 1000)
        yield Check(name="a", value=1.0, bound="2", met=False, reason="a is not 2, which nobody expected.")


class Broken:
    def judge(self, model):
        raise KeyError("lost")


class NotChecks:
    def judge(self, model):
        return [True]


@pytest.fixture(autouse=True)
def _module(monkeypatch):
    module = types.ModuleType("my_gates")
    vars(module).update({gate.__name__: gate for gate in (EnoughRows, Broken, NotChecks)})
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(next(block for block in blocks if "NoGiantRows" in block), vars(module))
    monkeypatch.setitem(sys.modules, "my_gates", module)


def test_passing_gate_leaves_the_blessing_and_is_in_the_figures(run, tmp_path):  # noqa: F811
    blessing, quality = judge(run(knows_users=True), tmp_path, gates=["my_gates.NoGiantRows"])
    assert blessing.get_int_custom_property("blessed") == 1
    figures = {check["name"]: check["met"] for check in quality["checks"]}
    assert (figures["largest norm of user"], figures["largest norm of item"]) == (True, True)


def test_gate_that_refuses_gives_its_reasons(run, tmp_path):  # noqa: F811
    blessing, _ = judge(run(knows_users=True), tmp_path, gates=["my_gates.NoGiantRows", "my_gates.EnoughRows"])
    assert blessing.get_int_custom_property("blessed") == 0
    assert blessing.get_string_custom_property("reason") == (
        "my_gates.EnoughRows: rows is 300: it must be at least 1000. "
        "my_gates.EnoughRows: a is not 2, which nobody expected."
    )


def test_gate_that_raises_ends_the_run_without_a_blessing(run, tmp_path):  # noqa: F811
    with pytest.raises(ConfigError, match=r"gate 'my_gates.Broken' failed with KeyError: 'lost'"):
        judge(run(knows_users=True), tmp_path, gates=["my_gates.Broken"])
    assert not (tmp_path / "blessing" / "quality.json").exists()


def test_gate_that_gives_something_else_than_checks_is_an_error():
    with pytest.raises(ConfigError, match="gave True: it must give"):
        own_checks(["my_gates.NotChecks"], None)

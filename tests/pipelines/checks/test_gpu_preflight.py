"""Runs `preflight --device gpu` on the demo, on a machine without a GPU."""

import json
import os

import pytest
import tensorflow as tf

import pipelines.examples
from pipelines.commands import cli
from tests.pipelines.commands.exit_code import exit_code

TAXI = os.path.join(pipelines.examples.__path__[0], "taxi.yaml")
COMMAND = ["preflight", TAXI, "--device", "gpu", "--assume", "100"]


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="the GPU is there")
def test_each_table_of_the_demo_is_a_finding_without_a_gpu(tmp_path, capsys):
    assert exit_code(*COMMAND, "--json", tmp_path / "report.json") == cli.FINDINGS
    report = json.loads((tmp_path / "report.json").read_text())
    tables = {table["name"] for table in report["tables"]}
    assert tables == set(report["for_gpu"])
    assert {lookup["table"] for lookup in report["lookups"]} - {None} <= tables
    assert [finding["kind"] for finding in report["silent"]] == ["device"] * len(tables)
    shown = capsys.readouterr().out
    assert "lookups of a step ran on device:CPU:0" in shown
    assert "TensorFlow finds no GPU in this process" in shown

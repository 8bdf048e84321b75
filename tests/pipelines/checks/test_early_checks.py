"""Tests that every command reports mistakes of the configuration before it imports TensorFlow, TFX, Beam or KFP."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.light

TEXT = "data: rows.csv\nlabel: bought\nfeatures: {categorical: [item]}\n"
HEAVY = ("tensorflow", "tfx", "apache_beam", "kfp")
KUBEFLOW = "kubeflow={image: i, pipeline_root: gs://b/r}"
ADDRESSES = [KUBEFLOW, "push=gs://b/serving", "data={path: gs://b/rows.csv, format: csv}"]
TPU = ["training.strategy=tpu", "training.topology=v5e-4"]
CODE = f"""
import sys
from pipelines.commands import cli
try:
    cli.main(sys.argv[1:])
finally:
    print("loaded:", *(name for name in {HEAVY!r} if name in sys.modules))
"""


@pytest.fixture
def called(tmp_path):
    (tmp_path / "rows.csv").write_text("item,bought\na,1\n")
    (tmp_path / "my.yaml").write_text(TEXT)

    def call(command, options, sets):
        given = [command, str(tmp_path / "my.yaml"), *options, *(word for one in sets for word in ("--set", one))]
        return subprocess.run(
            [sys.executable, "-c", CODE, *given], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return call


COMPILE = ["--target", "vertex", "--out", "p.yaml"]
GKE = ["--target", "kubeflow", "--out", "p.yaml"]


@pytest.mark.parametrize(
    ("command", "options", "sets", "words"),
    [
        ("compile", COMPILE, [], "`kubeflow` is null"),
        ("compile", COMPILE, [KUBEFLOW], "`data.path` is"),
        ("compile", COMPILE, [*ADDRESSES, "kubeflow.resources.Nobody={cpu: 1}"], "unknown task"),
        ("compile", COMPILE, [*ADDRESSES, *TPU], "`kubeflow.project` is null"),
        ("compile", GKE, [*ADDRESSES, TPU[0], "training.topology=v5e-16"], "one pod"),
        ("compile", GKE, [*ADDRESSES, "name=___"], "in Kubernetes"),
        ("compile", ["--target", "kubeflow", "--out", "no/p.yaml"], ADDRESSES, "`--out` is"),
        ("preflight", [], [], "name a TPU slice"),
        ("preflight", ["--topology", "v3-7"], [], "v3-7"),
        ("preflight", ["--topology", "v3-8", "--table-configs", "."], [], "embedding_config.json"),
        ("preflight", ["--topology", "v3-8", "--json", "no/report.json"], [], "`--json` is"),
        (
            "preflight",
            ["--topology", "v3-8"],
            ["features.categorical.0={name: item, max_sequence_length: auto}"],
            "auto",
        ),
        ("run", [], ["row_filters=[{column: item, min: abc}]"], "a date such as"),
        ("run", [], ["warm_start=/absent"], "it has no manifest.json"),
        ("validate", [], ["row_filters=[{column: item, min: abc}]"], "a date such as"),
        ("validate", [], ["seed=-1"], "`seed` is -1"),
    ],
)
def test_mistake_is_said_before_anything_heavy_is_loaded(called, command, options, sets, words):
    done = called(command, options, sets)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "loaded:\n"


def test_validate_loads_nothing_heavy(called):
    done = called("validate", [], [])
    assert done.returncode == 0
    assert done.stdout.endswith("loaded:\n")

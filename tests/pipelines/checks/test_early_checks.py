"""Tests that every command reports mistakes of the configuration before it imports TensorFlow, TFX, Beam or KFP."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.light

TEXT = "data: rows.csv\nlabel: bought\nfeatures: {categorical: [item]}\n"
KUBEFLOW = "kubeflow={image: i, pipeline_root: gs://b/r}"
ADDRESSES = [KUBEFLOW, "push=gs://b/serving", "data={path: gs://b/rows.csv, format: csv}"]
TPU = ["training.strategy=tpu", "training.topology=v5e-4"]
AUTO = "features.categorical.0={name: item, max_sequence_length: auto}"
COMPILE = ("compile", "my.yaml", "--target", "vertex", "--out", "p.yaml")
GKE = ("compile", "my.yaml", "--target", "kubeflow", "--out", "p.yaml")
PREFLIGHT = ("preflight", "my.yaml", "--topology", "v3-8")
MISTAKES = [
    (COMPILE, [], "`kubeflow` is null"),
    (COMPILE, [KUBEFLOW], "`data.path` is"),
    (COMPILE, [*ADDRESSES, "kubeflow.resources.Nobody={cpu: 1}"], "unknown task"),
    (COMPILE, [*ADDRESSES, *TPU], "`kubeflow.project` is null"),
    (GKE, [*ADDRESSES, TPU[0], "training.topology=v5e-16"], "one pod"),
    (GKE, [*ADDRESSES, "name=___"], "in Kubernetes"),
    ((*GKE[:-1], "no/p.yaml"), ADDRESSES, "`--out` is"),
    (PREFLIGHT[:2], [], "name a TPU slice"),
    (("preflight", "my.yaml", "--topology", "v3-7"), [], "v3-7"),
    ((*PREFLIGHT, "--table-configs", "."), [], "embedding_config.json"),
    ((*PREFLIGHT, "--json", "no/report.json"), [], "`--json` is"),
    (PREFLIGHT, [AUTO], "auto"),
    ((*PREFLIGHT, "--device", "gpu"), [], "leave out one of them"),
    (("run", "my.yaml"), ["row_filters=[{column: item, min: abc}]"], "a date such as"),
    (("run", "my.yaml"), ["features.categorical.0=itm"], "column 'itm' is missing"),
    (("run", "my.yaml"), [], "is 1 in all 1 rows"),
    (("run", "my.yaml"), ["label=item", "features.categorical.0=bought"], "`kind: multiclass`"),
    (("run", "my.yaml"), ["data={path: '{SPAN}.csv', spans: {first: 2, last: 1}}"], "must be at most `last`, 1"),
    (("run", "my.yaml"), ["evaluation.baseline=/absent"], "it has no Format-Serving/saved_model.pb"),
    (("run", "my.yaml"), ["warm_start=/absent"], "it has no manifest.json"),
    (("validate", "my.yaml"), ["row_filters=[{column: item, min: abc}]"], "a date such as"),
    (("validate", "my.yaml"), ["seed=-1"], "`seed` is -1"),
]
VALID = ("validate", "my.yaml")
# One process calls all commands in turn: after the first one that loads a heavy package, all have loaded it.
PROGRAM = """
import contextlib, io, json, sys
from pipelines.commands import cli
heavy = ("tensorflow", "tfx", "apache_beam", "kfp", "pyarrow", "ml_metadata", "jinja2")
results = []
for command in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            cli.main(command)
        except SystemExit as ended:
            code = ended.code or 0
    results.append([code, said.getvalue(), [name for name in heavy if name in sys.modules]])
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the exit code of each command, what it printed, and the heavy packages that are then loaded."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "rows.csv").write_text("item,bought\na,1\n")
    (folder / "my.yaml").write_text(TEXT)
    commands = [VALID, *([*given, *(f"--set={setting}" for setting in sets)] for given, sets, _ in MISTAKES)]
    program = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_validate_loads_nothing_heavy(results):
    code, _, loaded = results[0]
    assert (code, loaded) == (0, [])


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[words for _, _, words in MISTAKES])
def test_mistake_is_said_before_anything_heavy_is_loaded(results, number):
    code, said, loaded = results[number + 1]
    assert code == 1
    assert MISTAKES[number][2] in said
    assert "Traceback" not in said
    assert not {"tensorflow", "tfx", "apache_beam", "kfp"} & set(loaded)

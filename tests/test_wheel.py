"""Tests what the wheel requires, and that its core works in an empty environment of each Python."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomli

pytestmark = pytest.mark.light

ROOT = Path(__file__).parents[1]
PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
UV = Path(sys.executable).with_name("uv")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
OF_THE_PIPELINE = {"tfx", "apache-beam", "ml-metadata", "tensorflow-transform", "tensorflow-serving-api", "kfp"}
IMPORTS = """
import embedding_core, components, pipelines, sys
from pipelines.commands import cli
assert "site-packages" in embedding_core.__file__, embedding_core.__file__
assert not {"tfx", "apache_beam", "kfp"} & {name.partition(".")[0] for name in sys.modules}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy of the sources, with the setuptools of this environment."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "embedding_core", "components", "pipelines"):
        subprocess.run(["cp", "-r", ROOT / name, place], check=True)
    command = [UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir"]
    subprocess.run([*command, place / "dist", place], check=True)
    (built,) = (place / "dist").glob("*.whl")
    return built


def test_core_needs_no_tfx():
    core = {re.match(r"[\w.-]+", dependency)[0] for dependency in PROJECT["dependencies"]}
    assert not core & OF_THE_PIPELINE
    assert {"tensorflow", "tf-keras", "numpy", "pyarrow"} <= core
    assert set(PROJECT["optional-dependencies"]) >= {"tfx", "kubeflow"}


def test_every_python_that_the_classifiers_name_is_admitted():
    named = [classifier.rpartition(" ")[2] for classifier in PROJECT["classifiers"] if "Python :: 3." in classifier]
    assert tuple(named) == PYTHONS
    assert PROJECT["requires-python"] == ">=3.10,<3.14"


def example():
    """Return the README's example of the layer."""
    blocks = re.findall(r"```python\n(.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "from embedding_core.layer" in block]
    return block


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("python", PYTHONS)
def test_readme_example_runs_from_the_wheel(wheel, tmp_path, python):
    """On every installed patch version: behaviour that a patch release changed has broken packages before."""
    found = installed(python)
    if not found:
        pytest.skip(f"there is no Python {python} here, and uv cannot download one")
    for version, interpreter in found.items():
        check_example(wheel, tmp_path / version, interpreter)


def installed(python):
    """Return the installed interpreters of a minor version by their patch version; without one, uv tries to get one."""
    command = [UV, "python", "list", "--only-installed", "--output-format", "json", python]
    for _ in range(2):
        listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        if listed:
            break
        subprocess.run([UV, "python", "install", "--quiet", python], capture_output=True, check=False)
    return {entry["version"]: entry["path"] for entry in listed if entry["implementation"] == "cpython"}


def check_example(wheel, folder, python):
    subprocess.run([UV, "venv", "-q", "--no-project", "--python", python, folder], check=True)
    interpreter = folder / "bin/python"
    subprocess.run([UV, "pip", "install", "--quiet", "--python", interpreter, wheel], check=True)
    run = runner(folder)
    run(interpreter, "-c", IMPORTS)
    assert "need TFX" in run(folder / "bin/tfx-embeddings", "--help")
    losses = [float(loss) for loss in run(interpreter, "-c", example()).strip("[]\n").split(",")]
    assert losses[-1] < losses[0]
    names = {line.partition("==")[0] for line in run(UV, "pip", "freeze", "--python", interpreter).splitlines()}
    assert "tensorflow" in names
    assert not names & OF_THE_PIPELINE


def runner(folder):
    """Return a function that runs a command in a folder, without PYTHON* and TF_* variables, and returns its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TF_"))}

    def run(*command):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run

"""Runs the README's commands from the installed wheel, in a folder outside of the checkout.

`make release-check` gives the environment that has the wheel as RELEASE_PYTHON.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.light]

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("code_blocks", ROOT / "tests" / "docs" / "code_blocks.py")
code_blocks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(code_blocks)

# What a README's command needs beside the project that `init` writes, by its first words.
NEEDS_SPANS = "data.spans.first"  # tests/pipelines/test_two_spans.py runs this one
ADDED = {
    "plan": ["--set", "training.epochs=1"],
    "compile": [
        "--set", "data.path=gs://bucket/data.csv", "--set", "push.destination=gs://bucket/serving",
        "--set", "kubeflow={image: none, pipeline_root: gs://bucket/root}",
    ],
    "compare": [],
}  # fmt: skip
PROGRAM = "import embedding_core, sys; print(embedding_core.__file__, sys.version.split()[0])"


@pytest.fixture(scope="module")
def release():
    if "RELEASE_PYTHON" not in os.environ:
        pytest.skip("no environment with the wheel is given: run `make release-check`")
    return Path(os.environ["RELEASE_PYTHON"])


@pytest.fixture(scope="module")
def run(release, tmp_path_factory):
    """Return a function that runs a command of the release in a folder of its own, and returns the finished process."""
    folder = tmp_path_factory.mktemp("user")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TF_"))}

    def run_(*command):
        command = [str(release.with_name(command[0])), *map(str, command[1:])]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    run_.folder = folder
    return run_


def completed(done, codes=(0,)):
    assert done.returncode in codes, (done.args, done.stdout[-1500:], done.stderr[-1500:])
    return done.stdout


def test_wheel_is_what_is_imported(run):
    where, version = completed(run("python", "-c", PROGRAM)).split()
    assert "site-packages" in where
    assert str(ROOT) not in str(run.folder)
    print(f"\nPython {version}")


@pytest.mark.timeout(3600)
def test_commands_of_the_readme_run_without_the_checkout(run):
    completed(run("tfx-embeddings", "init", "runs/demo"))
    config = (run.folder / "runs/demo/pipeline.yaml").read_text()
    (run.folder / "my_config.yaml").write_text(re.sub("(?m)^name: .*$", "name: my_config", config))
    lines = [one for block in code_blocks.blocks_of("README.md") for one in code_blocks.commands_of(block.text)]
    assert len(lines) > 12
    ran, left = [], []
    # Commands that read a finished run come after the runs, whatever their place on the page.
    order = sorted(lines, key=lambda one: one.split()[0] not in {"init", "validate", "plan", "preflight", "run"})
    for line in order:
        if NEEDS_SPANS in line:
            left.append(line)
            continue
        words = with_real_names(shlex.split(line), run.folder)
        done = run("tfx-embeddings", *words, *ADDED.get(words[0], []))
        completed(done, (0, 4) if words[0] in {"plan", "preflight"} else (0,))  # 4: what was found is shown
        ran.append(line)
    print(f"\nran {len(ran)} commands, left out {left}")
    assert len(left) == 1


def with_real_names(words, folder):
    """Replace the page's examples by what the runs before made: the versions, the number of a checkpoint, the data."""
    versions = sorted(path.name for path in folder.glob("runs/my_config/serving/[0-9]*"))
    examples = iter(versions)
    words = [next(examples, versions[-1]) if re.fullmatch(r"1790\d{6}", word) else word for word in words]
    if words[0] == "init":
        shutil.copy(next(demo_data(folder)), folder / "clicks.csv")
        return ["init", words[1], "--data", "clicks.csv"]
    made = folder.glob("runs/my_config/artifacts/CheckpointRetriever/embedding_checkpoint/*")
    checkpoints = sorted((path for path in made if path.name.isdigit()), key=lambda path: int(path.name))
    return [str(checkpoints[-1]) if "<number>" in word else word for word in words]


def demo_data(folder):
    yield from (Path(os.environ["RELEASE_PYTHON"]).parents[1]).glob(
        "lib/*/site-packages/tfx/examples/*/data/simple/data.csv"
    )

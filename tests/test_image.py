"""Tests the image without a container engine: parses its Dockerfile and runs its build script."""

import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "tfx-1.21.txt"
DOCKERFILE = (ROOT / "kubeflow" / "Dockerfile").read_text()
needs_its_glibc = pytest.mark.skipif(
    tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 39),
    reason=f"glibc is {platform.libc_ver()[1]} and the image's is 2.41; `make today RUN=image-check` has it",
)


def instructions():
    """Return the instruction and argument of every step, with continued lines joined."""
    lines = [line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def stages():
    """Return the instructions of each stage by its name."""
    found, name = {}, None
    for word, rest in instructions():
        if word == "FROM":
            name = rest.rpartition(" AS ")[2]
            found[name] = [(word, rest)]
        elif name:
            found[name].append((word, rest))
    return found


def test_there_is_a_target_for_cpu_tpu_and_beam_workers():
    assert {"cpu", "tpu", "beam-worker"} <= set(stages())


def test_images_that_it_starts_from_are_pinned():
    given = [
        rest.partition("=")[2] for word, rest in instructions() if word == "ARG" and ":" in rest and "//" not in rest
    ]
    assert given
    assert all(re.search(r":\d+\.\d+\.\d+", image) for image in given)
    named = {rest.split()[0] for word, rest in instructions() if word == "FROM"}
    assert named <= {"${PYTHON}", "${TPU_PYTHON}", "${BEAM}", *stages()}


def test_beam_of_the_worker_is_that_of_the_lock():
    (python, version) = re.search(r"beam_python([\d.]+)_sdk:([\d.]+)", DOCKERFILE).groups()
    assert f"python:{python}." in DOCKERFILE
    assert f"apache-beam=={version} " in LOCK.read_text()


@pytest.mark.parametrize("target", ["cpu", "tpu", "beam-worker"])
def test_target_does_not_run_as_root(target):
    def users(stage):
        base = stages()[stage][0][1].split()[0]
        return (users(base) if base in stages() else []) + [rest for word, rest in stages()[stage] if word == "USER"]

    assert users(target)[-1] == "1000"


def test_everything_that_is_copied_exists_and_is_not_ignored():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = [shlex.split(rest)[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    copied = {path for some in sources for path in some}
    assert copied == kept
    assert all((ROOT / path).exists() for path in copied)


def test_it_sets_what_the_entry_points_need():
    for target in ("cpu", "tpu"):
        (environment,) = [rest for word, rest in stages()[target] if word == "ENV"]
        assert "TF_USE_LEGACY_KERAS=1" in environment


@pytest.mark.parametrize("name", ["dataflow", "flink", "spark"])
def test_beam_arguments_are_a_configurations_and_beams(name):
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    from pipelines.config import Kubeflow

    given = yaml.safe_load((ROOT / "kubeflow" / "beam" / f"{name}.yaml").read_text())
    section = Kubeflow(image="i", pipeline_root="gs://b/r", **given)
    options = PipelineOptions(list(section.beam_args))
    assert name in options.view_as(StandardOptions).runner.lower()
    known = set(options.get_all_options())
    assert {argument.partition("=")[0].lstrip("-") for argument in section.beam_args} <= known


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Run the Dockerfile's build step on the files that it copies, and return the environment that it makes."""
    (step,) = [rest for word, rest in stages()["build"] if word == "RUN" and "install.sh" in rest]
    place = tmp_path_factory.mktemp("image")
    for source in [path for word, rest in stages()["build"] if word == "COPY" for path in shlex.split(rest)[:-1]]:
        target = place / "src" / source
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", ROOT / source, target], check=True)
    command = step.replace("/src", f"{place}/src").replace("/opt/tfx-embeddings", f"{place}/environment")
    path = f"{Path(sys.executable).parent}:{ROOT}/.uv/bin:{os.environ['PATH']}"
    subprocess.run(shlex.split(command), check=True, cwd=place, env={**os.environ, "PATH": path})
    return place / "environment"


@needs_its_glibc
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_image_holds_the_locks_versions(environment):
    program = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    done = subprocess.run(
        [environment / "bin" / "python", "-I", "-c", program], capture_output=True, text=True, check=True
    )
    locked = set(re.findall(r"^([\w.-]+==[\w.+!-]+)", LOCK.read_text(), re.MULTILINE))
    installed = {normal(package) for package in done.stdout.split()}
    assert len(installed) > 100
    assert {package.partition("==")[0] for package in installed - set(map(normal, locked))} == {"tfx-embeddings"}


def normal(pin):
    name, _, version = pin.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


@needs_its_glibc
@pytest.mark.slow
@pytest.mark.tfx
@pytest.mark.timeout(5400)
def test_every_task_of_the_demo_runs_from_the_image(environment, tmp_path, monkeypatch):
    """Each task runs the command line of its container, without this checkout on the path."""
    from tests.pipelines.cluster.compiled_examples import save_demo
    from tests.pipelines.cluster.kfp_local import run_compiled

    save_demo(tmp_path / "pipeline.yaml", "kubeflow")
    (data,) = environment.glob("lib/python3.*/site-packages/tfx/examples/chicago_taxi_pipeline/data/simple")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    values = {
        "data_folder": str(data),
        "push_destination": f"{tmp_path}/serving",
        "resume_folder": f"{tmp_path}/resume",
    }
    run_compiled(tmp_path / "pipeline.yaml", tmp_path / "root", values, python=str(environment / "bin" / "python"))
    assert [path.name for path in (tmp_path / "serving").iterdir() if path.name.isdigit()]

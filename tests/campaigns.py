"""Runs campaigns, the long tests that `make test` leaves out: `make campaign NAME="contract deltas"`.

    python tests/campaigns.py NAME...

A campaign is a selection of pytest's tests, with what it needs. CONTRIBUTING.md has the table of them.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Campaign(NamedTuple):
    """A campaign.

    Attributes:
      proves: what it proves.
      commands: a command in each line, which runs if those before it passed: a program with its arguments, or a script.
      minutes: time on two cores; 0 if it was not measured.
      makes: files of the Makefile that are made before.
      needs: what has to be given or is needed, for the table.
      required: environment variables that have to be given.
    """

    proves: str
    commands: str
    minutes: int
    makes: tuple[str, ...] = ()
    needs: str = ""
    required: tuple[str, ...] = ()


_COMPILERS = (".tpu-compiler/.ready", ".sparsecore-compiler/.ready")
_DATA = "`DATA=<folder with the daily CSV files of Online Retail>`; without it, its cases are skipped"
# Pairs of Python and TensorFlow that the core is tested with beside those of the lock, the newest last.
_MATRIX = (".matrix/3.11-2.18", ".matrix/3.12-2.20", ".matrix/3.13-2.21")
# Variables by which the tests find environments.
_PYTHONS = {
    "TPU_COMPILER_PYTHON": str(ROOT / ".tpu-compiler/bin/python"),
    "SPARSECORE_COMPILER_PYTHON": str(ROOT / ".sparsecore-compiler/bin/python"),
    "NEWEST": str(ROOT / _MATRIX[-1] / "bin/python"),
}

PYTEST = "pytest -rPs -m 'slow or not slow'"
SLOW = "pytest -s -m slow"
_CORE = "-n auto --dist=worksteal -m 'not slow and not tfx' tests/embedding_core"

CAMPAIGNS = {
    "contract": Campaign(
        "the full product of kinds, combiners, optimizers and engines against the oracle; every strategy's training",
        f"{PYTEST} tests/embedding_core/test_contract.py tests/embedding_core/engines/test_topologies.py "
        "tests/embedding_core/engines/test_step_memory.py tests/embedding_core/serving/test_same_as_training.py "
        "tests/embedding_core/training tests/embedding_core/layer",
        25,
    ),
    "tf-tests": Campaign(
        "TensorFlow's own TPU embedding tests pass on the simulated TPU; the counts are recorded",
        f"{SLOW} tests/tf_tests/test_tensorflow_tests.py\ntests/tf_tests/record.py",
        5,
        needs="`TF_TESTS=<checkout of github.com/tensorflow/tensorflow>`",
        required=("TF_TESTS",),
    ),
    "tfrs-tests": Campaign("TensorFlow Recommenders' own tests pass on our layers", f"{SLOW} tests/tfrs_tests", 0),
    "tasks": Campaign(
        "every kind of label from YAML to a pushed version, TFRS's tutorials, made-up leaderboards, the examples, "
        "second days, `follow`",
        f"{SLOW} tests/pipelines/test_tasks.py tests/pipelines/test_moving_from_tfrs.py tests/benchmarks "
        "tests/examples tests/pipelines/test_end_to_end.py tests/pipelines/test_follow.py tests/pipelines/shadow",
        0,
    ),
    "faults": Campaign(
        "kills, full disks, damaged files, resharding, memory of a 2 GiB table",
        f"{PYTEST} --timeout=3600 tests/faults tests/embedding_core/checkpoint tests/pipelines/test_two_spans.py "
        "tests/embedding_core/training/test_training.py",
        10,
    ),
    "daily-kills": Campaign(
        "two days killed at random moments train the tables of two undisturbed days",
        f"{SLOW} tests/pipelines/test_daily_kills.py",
        0,
        needs="`KILLS=40`",
    ),
    "deltas": Campaign(
        "random chains of deltas, load while deltas are applied",
        f"{SLOW} --timeout=7200 tests/deltas",
        7,
    ),
    "health": Campaign(
        "the health gate passes healthy daily runs and finds planted sicknesses",
        f"{SLOW} -n 0 tests/pipelines/health",
        5,
        needs=_DATA,
    ),
    "parameter-server": Campaign(
        "two parameter servers and two workers: seeds against one process, kills, a pipeline",
        f"{PYTEST} -n 0 tests/parameter_server",
        12,
        needs="`SEEDS=3`",
    ),
    "dask": Campaign(
        "Beam's components and the demo on a Dask cluster, a worker killed midway",
        f"{PYTEST} tests/components/dask tests/pipelines/dask tests/components/test_beam_runners.py",
        5,
    ),
    "shared-metadata": Campaign(
        "four pipelines on one store, killed at random: sqlite and, if mariadb-server is installed, MariaDB",
        f"{PYTEST} tests/pipelines/test_shared_metadata.py tests/pipelines/test_metadata_server.py",
        0,
    ),
    "object-stores": Campaign(
        "pushes to gs:// killed at random, and the demo, on fake-gcs-server",
        f"{PYTEST} tests/object_stores",
        0,
        makes=(".object-stores/.ready",),
    ),
    "servers": Campaign(
        "a C program, Triton and KServe answer 100,000 requests during pushes",
        f"{PYTEST} tests/servers",
        28,
        makes=(".servers/.ready",),
    ),
    "kfp-local": Campaign(
        "every task of the compiled demo runs, started as the backend would",
        f"{SLOW} tests/pipelines/cluster/test_kfp_local.py",
        4,
    ),
    "kube-check": Campaign(
        "Kubernetes' own API server takes every manifest, and refuses planted mistakes",
        f"{PYTEST} tests/kube_check",
        1,
        makes=(".kube-check/.ready",),
        needs="Debian 12 once, 8 minutes, to build the server",
    ),
    "image-check": Campaign("the image's environment runs every task of the demo", f"{SLOW} tests/test_image.py", 2),
    "notebook": Campaign(
        "the notebook of the components runs, and the pipeline of somebody else that uses them",
        f"{PYTEST} tests/examples/test_in_your_own_pipeline.py tests/pipelines/new_project",
        2,
    ),
    "pages": Campaign("every command of README and docs runs", f"{PYTEST} tests/docs/test_pages_run.py", 0),
    "wheel": Campaign("the wheel runs in an empty environment of each Python", f"{PYTEST} tests/test_wheel.py", 0),
    "matrix": Campaign(
        "the core's tests on each pair of Python and TensorFlow",
        "\n".join(f"{folder}/bin/pytest {_CORE}" for folder in _MATRIX)
        + f"\n{_MATRIX[-1]}/bin/pytest -rPs -m slow -k 2x2 tests/tf_tests",
        25,
        makes=tuple(f"{folder}/.ready" for folder in _MATRIX),
        needs="`TF_TESTS=<checkout of TensorFlow>` for its tests on the newest pair",
    ),
    "interchange": Campaign(
        "the oldest and the newest pair read each other's files; each TFX continues the other's work_dir",
        f"{PYTEST} tests/interchange",
        5,
        makes=(f"{_MATRIX[-1]}/.ready",),
        needs="the user root, or `OTHER_STACK=<command that starts the other stack's Python>`",
    ),
    "removable": Campaign(
        "without any of the optional rooms, the checks, the fast tests and the demo pass",
        "tests/removable.py",
        40,
        needs='`ROOMS="deltas shadow"` for some of them',
    ),
    "tpu-compiler": Campaign(
        "every example compiles for every generation with Google's TPU compiler, and planted mistakes do not",
        f"{PYTEST} --timeout=900 tests/embedding_core/tpu_compiler tests/pipelines/tpu_compiler",
        9,
        makes=_COMPILERS,
        needs="1.9 GB of packages under Google Cloud's terms",
    ),
    "sparsecore-judge": Campaign(
        "limits of SparseCores hold in the C++ of jax-tpu-embedding, and compiled",
        f"{PYTEST} tests/sparse_cores/judge",
        0,
        makes=(".matrix/sparsecore/.ready", *_COMPILERS),
        needs=_DATA,
    ),
}


def table() -> str:
    """Return the table of CONTRIBUTING.md."""
    lines = ["| name | proves | needs | minutes |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {row.proves} | {row.needs} | {row.minutes or ''} |" for name, row in CAMPAIGNS.items()]
    return "\n".join(lines) + "\n"


def words_of(command: str) -> list[str]:
    """Return the words of a command: a script runs with this Python, a program without a folder is beside it."""
    program, *arguments = shlex.split(command)
    if program.endswith(".py"):
        return [sys.executable, program, *arguments]
    return [program if "/" in program else str(Path(sys.executable).with_name(program)), *arguments]


def run(campaign: Campaign) -> bool:
    """Make what a campaign needs, and run its commands; return whether they passed."""
    for target in campaign.makes:
        subprocess.run(["make", "--no-print-directory", target], cwd=ROOT, check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= {name: python for name, python in _PYTHONS.items() if (ROOT / python).exists()}
    for command in campaign.commands.splitlines():
        if subprocess.run(words_of(command), cwd=ROOT, env=environment, check=False).returncode != 0:
            return False
    return True


def main(names: list[str]) -> str:
    """Run campaigns; return what is wrong, "" if nothing is."""
    if not names or not set(names) <= set(CAMPAIGNS):
        return f"NAME is {' '.join(names)!r}: give one or more of {', '.join(CAMPAIGNS)}."
    missing = {variable for name in names for variable in CAMPAIGNS[name].required if not os.environ.get(variable)}
    if missing:
        return f"{', '.join(sorted(missing))} is not given; CONTRIBUTING.md says what each campaign needs."
    failed = []
    for name in names:
        begin = time.monotonic()
        if not run(CAMPAIGNS[name]):
            failed.append(name)
        sys.stdout.write(f"{name}: {'FAILED' if name in failed else 'passed'}, {time.monotonic() - begin:.0f} s\n")
    return f"failed: {', '.join(failed)}" if failed else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)

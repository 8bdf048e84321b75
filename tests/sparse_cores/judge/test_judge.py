"""The limits before the C++ of jax-tpu-embedding 0.2.0, which runs in an environment of its own (`judge.py`).

`verdicts.json` holds what that C++ saw in the drawn cases; the campaign `sparsecore-judge` runs it again and writes
the file.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.sparse_cores.judge import cases

_HERE = Path(__file__).parent
_PYTHON = Path(os.environ.get("SPARSECORE_PYTHON") or _HERE.parents[2] / ".matrix" / "sparsecore" / "bin" / "python")
_COMPILER = pytest.importorskip("embedding_core.tpu_compiler").SparseCoreCompiler.installed()
_VERDICTS = _HERE / "verdicts.json"
_MOST = 1.05  # a limit of all batches, divided by what the C++ saw
_KEYS = ("max_ids_per_partition", "max_unique_ids_per_partition", "required_buffer_size_per_sc")
_needs_judge = pytest.mark.skipif(
    not _PYTHON.exists(), reason=f"there is no {_PYTHON}: the campaign `sparsecore-judge` makes the environment"
)
_needs_compiler = pytest.mark.skipif(
    _COMPILER is None, reason="there is no compiler for SparseCores: `make sparsecore-compiler` makes its environment"
)


def _judged(*folders):
    done = subprocess.run([_PYTHON, _HERE / "judge.py", *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return {verdict["case"]: verdict for verdict in map(json.loads, lines)}


@pytest.fixture(scope="session")
def all_cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    cases.write_all(folder, os.environ.get("DATA", ""))
    return sorted(path.parent for path in folder.glob("*/case.json"))


def _ratios(verdict):
    return [verdict["limits"][key][stack] / seen for key in _KEYS for stack, seen in verdict["seen"][key].items()]


def _check(verdicts):
    """Print and check the verdicts: no id is dropped, and limits of all batches are tight."""
    for name, verdict in verdicts.items():
        dropped, ratios = sum(verdict["dropped"].values()), _ratios(verdict)
        below = list(verdict["dropped_one_below"].values())
        print(
            f"{name}: {verdict['batches']} batches, {dropped} dropped, limits / seen {min(ratios):.3f} to "
            f"{max(ratios):.3f}, {sum(ratio > 0 for ratio in below)} of {len(below)} refused one below"
        )
        assert dropped == 0
        assert min(ratios) >= 1
        assert all(below)
        assert name.endswith("bound") or max(ratios) <= _MOST


def test_limits_are_those_that_the_judge_saw(tmp_path):
    cases.write_drawn(tmp_path)
    recorded = json.loads(_VERDICTS.read_text())
    assert {path.name for path in tmp_path.iterdir()} == set(recorded)
    for name, seen in recorded.items():
        form = json.loads((tmp_path / name / "case.json").read_text())["program"]["form"]
        assert form["update_preprocessing_parameters"] == seen


@_needs_judge
def test_judge_drops_nothing_and_sees_the_limits(tmp_path):
    cases.write_drawn(tmp_path, topologies=["v6e-4"], batches=4)
    _check(_judged(*tmp_path.iterdir()))


@_needs_judge
@pytest.mark.parametrize("limit", ["max_ids_per_partition", "max_unique_ids_per_partition"])
def test_limit_one_below_is_refused_by_name(tmp_path, limit):
    cases.write_drawn(tmp_path, topologies=["v5p-8"], batches=3)
    command = [_PYTHON, _HERE / "judge.py", "--refused", tmp_path / "v5p-8 zipf", limit, "country_item_user"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "for table: country_item_user is greater than the set max" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
@_needs_judge
def test_all_cases(all_cases):
    verdicts = _judged(*all_cases)
    _check(verdicts)
    drawn = {name: verdict["seen"] for name, verdict in verdicts.items() if name.endswith(("uniform", "zipf"))}
    _VERDICTS.write_text(json.dumps(drawn, indent=1, sort_keys=True) + "\n")


def _compiled(folder):
    """Compile each stack of a case; return its result, by stack."""
    case = json.loads((folder / "case.json").read_text())
    return _COMPILER.compile(case["program"], case["generation"])["stacks"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@_needs_compiler
def test_all_cases_compile(all_cases):
    made = {folder.name: _compiled(folder) for folder in all_cases}
    for name, stacks in made.items():
        print(f"{name}: {stacks}")
    assert {found["stage"] for stacks in made.values() for found in stacks.values()} == {"compiled"}


@pytest.mark.slow
@_needs_compiler
def test_limits_far_too_large_do_not_compile(tmp_path):
    cases.write_drawn(tmp_path, topologies=["v5p-8"], batches=2)
    path = tmp_path / "v5p-8 zipf" / "case.json"
    case = json.loads(path.read_text())
    for of_stacks in case["program"]["form"]["update_preprocessing_parameters"].values():
        of_stacks.update({stack: 1000 * limit for stack, limit in of_stacks.items()})
    path.write_text(json.dumps(case))
    for found in _compiled(path.parent).values():
        assert found["stage"] == "refused"
        assert "No viable logical replica count" in found["error"]

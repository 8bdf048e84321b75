"""Tests the design rules of the shipped packages, mostly on their syntax trees."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomli

from embedding_core.rooms import ROOMS

pytestmark = pytest.mark.light

ROOT = Path(__file__).parents[1]
PACKAGES = ("embedding_core", "components", "pipelines")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
# The holder of tables and the drop-ins for TensorFlow's classes subclass AutoTrackable, as TensorFlow's classes do.
INTERNAL_ALLOWED = {f"embedding_core/engines/{name}.py" for name in ("tables", "tensorcore", "tpu_embedding")}

# Replaced while TPUEmbedding.build runs without a TPU: it asks for a value that only a real TPU has.
PATCHED_ALLOWED = {("embedding_core/preflight/trace.py", "tf.Tensor.__bool__")}


@functools.cache
def trees():
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())) for path in FILES]


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(tree):
    return [module for module in imported(tree) if module.split(".")[0] in PACKAGES]


def test_no_private_tensorflow_is_imported_or_named():
    private = re.compile(r"\b(tensorflow|tf)\.python\b|from tensorflow import python\b")
    assert [path for path in FILES if private.search(path.read_text())] == []


def test_internal_names_of_tensorflow_stand_in_their_named_place():
    found = {
        name
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "__internal__"
    }
    assert found <= INTERNAL_ALLOWED


def test_names_of_tensorflow_are_replaced_in_named_places_alone():
    targets = [
        (name, ast.unparse(target))
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    assert {place for place in targets if place[1].startswith(("tf.", "tf_keras.", "tensorflow."))} == PATCHED_ALLOWED


def test_files_that_read_arrow_data_close_its_known_hole():
    """pyarrow before 14.0.1 runs code that Parquet, Feather and Arrow files hold (CVE-2023-47248)."""
    readers = ("ParquetFile(", "read_table(", "ipc.open_", "read_feather(", "ParquetDataset(", "dataset.dataset(")
    reading = [text for text in (path.read_text() for path in FILES) if any(call in text for call in readers)]
    assert reading
    assert all("import pyarrow_hotfix" in text for text in reading)


def test_the_terminal_is_written_to_in_one_place():
    """`pipelines.console.terminal` escapes control characters."""
    found = {
        name
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "Console", "typer.echo", "click.echo"}
    }
    assert found == {"pipelines/console/terminal.py"}


def test_nothing_is_pickled():
    modules = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
    assert [name for name, tree in trees() if modules & {module.partition(".")[0] for module in imported(tree)}] == []


@pytest.mark.room("tpu_compiler")
def test_private_names_of_jaxlib_are_in_the_compilers_process():
    """The process that compiles for SparseCores imports JAX's public modules alone."""
    found = {name for name, tree in trees() if {"jax", "jaxlib"} & {path.partition(".")[0] for path in imported(tree)}}
    processes = {f"embedding_core/tpu_compiler/{name}_process.py" for name in ("compiler", "sparse_core")}
    assert found == processes
    private = {name for name, tree in trees() if any(re.match(r"jaxlib|jax\._src", path) for path in imported(tree))}
    assert private == {"embedding_core/tpu_compiler/compiler_process.py"}


def test_kubeflow_folder_is_no_package():
    assert not (ROOT / "kubeflow" / "__init__.py").exists()


def test_faces_export_what_they_list():
    import components
    import embedding_core

    for face in (embedding_core, components):
        assert all(name in dir(face) for name in face.__all__)


def test_imports_keep_to_their_floors():
    """Run the contracts of import-linter, as `make check` does."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def contract(name):
    found = tomli.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return next(entry for entry in found if entry["name"] == name)


def floors(text):
    """Return the set of names in each layer, from the top, without separators and parentheses."""
    return [set(re.findall(r"\w+", floor)) for floor in text]


@pytest.mark.parametrize(
    ("name", "first"), [("the floors of embedding_core", "deltas "), ("the wings of pipelines", ".+ > commands ")]
)
def test_layers_that_the_docs_draw_are_those_of_the_contract(name, first):
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawn = re.search(rf"\n\n    {first}(?:.+\n)+", page)[0]
    assert floors(drawn.split(">")) == floors(contract(name)["layers"])


def test_every_component_is_in_the_contract_of_independence():
    folders = {f"components.{path.parent.name}" for path in (ROOT / "components").glob("*/component.py")}
    rooms = {f"components.{room}" for room in ROOMS}
    assert set(contract("components never import each other")["modules"]) == folders - rooms


@pytest.mark.parametrize("room", ROOMS)
def test_an_optional_room_is_imported_by_itself_alone(room):
    outside = [(name, tree) for name, tree in trees() if Path(name).parts[1] != room]
    assert [name for name, tree in outside if any(room in module.split(".")[1:2] for module in ours(tree))] == []


def test_no_function_is_longer_than_80_lines():
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    lengths = {
        f"{name}:{node.name}": node.end_lineno - node.lineno + 1
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    }
    assert {name: lines for name, lines in lengths.items() if lines > 80} == {}


def test_names_of_tests_are_at_most_60_characters():
    files = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "tests").rglob("test_*.py")}
    names = [(file, name) for file, path in files.items() for name in re.findall(r"\bdef (test\w+)", path.read_text())]
    assert [(file, name) for file, name in names if len(name) > 60] == []


def test_light_files_load_no_tensorflow():
    """Checks the collection of light files; a fixture in `conftest.py` checks their tests while they run."""
    program = (
        "import pytest, sys; code = pytest.main(['-q', '--collect-only', '-m', 'light', '-p', 'no:cacheprovider']);"
        "assert not code; assert 'tensorflow' not in sys.modules, 'TensorFlow is loaded'"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_two_files_have_one_name():
    """Exceptions are `__init__.py`, the `component.py` and `executor.py` of each component, and the hooks of rooms."""
    twins = {"__init__.py", "component.py", "executor.py"}
    names = [path.name for path in FILES if path.name not in twins and path.parent.name not in ROOMS]
    assert {name for name in names if names.count(name) > 1} == set()


def test_faces_alone_list_their_names():
    """A face is an `__init__.py`, or `components/compat.py`, which exports private names of TFX."""
    found = {
        name
        for name, tree in trees()
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    }
    assert {name for name in found if not name.endswith("/__init__.py")} == {"components/compat.py"}

"""The contract of every component: what its folder under `components/` must export and declare."""

import ast
import importlib
import pathlib
import re

import pytest

import components
from components import component_spec
from embedding_core.rooms import ROOMS

ROOT = pathlib.Path(components.__file__).parent
TREE = ast.parse((ROOT / "artifacts.py").read_text())  # read, not imported: collecting tests must not load TFX
ARTIFACTS = [node.name for node in TREE.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/component.py"))

pytestmark = pytest.mark.tfx


def in_the_face(folder: str):
    """Tell whether `components` exports the folder's component, as it does all but those of optional rooms."""
    return folder not in ROOMS


def face(folder: str):
    return importlib.import_module(f"components.{folder}")


def the_class(folder: str):
    return getattr(face(folder), face(folder).__all__[0])


def keys_of(spec) -> set[str]:
    return {*spec.PARAMETERS, *spec.INPUTS, *spec.OUTPUTS}


def written_out(path: pathlib.Path) -> set[str]:
    """Return the literals in a module's source."""
    return {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}


def test_face_of_the_package_is_exactly_what_exists():
    assert FOLDERS
    exported = {name for folder in filter(in_the_face, FOLDERS) for name in face(folder).__all__}
    assert set(components.__all__) == exported | set(ARTIFACTS)
    for name in components.__all__:
        assert getattr(components, name).__name__ == name


@pytest.mark.parametrize("folder", FOLDERS)
def test_component_folder_exports_its_component_alone(folder):
    assert len(face(folder).__all__) == 1
    assert the_class(folder).__module__ == f"components.{folder}.component"


@pytest.mark.parametrize("folder", FOLDERS)
def test_executor_is_importable_by_its_dotted_path(folder):
    module, _, name = the_class(folder).EXECUTOR_SPEC.class_path.rpartition(".")
    assert getattr(importlib.import_module(module), name) is the_class(folder).EXECUTOR_SPEC.executor_class


@pytest.mark.parametrize("folder", FOLDERS)
def test_executor_finds_artifacts_and_records_lineage_as_all_do(folder):
    from components.base_executor import ComponentExecutor

    executor = the_class(folder).EXECUTOR_SPEC.executor_class
    assert issubclass(executor, ComponentExecutor)
    assert executor.Do is ComponentExecutor.Do
    assert the_class(folder).__name__ == executor.COMPONENT


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_key_of_the_spec_is_a_constant(folder):
    from tfx.types.standard_component_specs import FileBasedExampleGenSpec

    from components.pusher.push_section import FORMS

    keys = keys_of(the_class(folder).SPEC_CLASS) - keys_of(FileBasedExampleGenSpec) - set(FORMS)  # a form is of a room
    executor = importlib.import_module(f"components.{folder}.executor")
    named = {**vars(component_spec), **(vars(executor) if folder in ROOMS else {})}
    constants = {value for name, value in named.items() if name.isupper() and isinstance(value, str)}
    assert keys <= constants, "keys without a constant"
    assert not keys & written_out(ROOT / folder / "component.py"), "keys written out, not their constant"


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstring_names_every_output(folder):
    component = the_class(folder)
    described = (component.__doc__ or "").partition("Component `outputs` contains")[2]
    missing = [key for key in component.SPEC_CLASS.OUTPUTS if f"`{key}`" not in described]
    assert not missing


@pytest.mark.parametrize("folder", FOLDERS)
def test_own_artifact_types_of_the_spec_are_exported(folder):
    spec = the_class(folder).SPEC_CLASS
    types = [parameter.type for parameter in (*spec.INPUTS.values(), *spec.OUTPUTS.values())]
    own = [cls for cls in types if cls.__module__.startswith("components.")]
    assert all(cls.__name__ in components.__all__ for cls in own)


@pytest.mark.parametrize("name", ARTIFACTS)
def test_artifact_type_passes_the_rule_of_kfp_v2(name):
    from tfx.orchestration.kubeflow.v2 import compiler_utils
    from tfx.utils import import_utils

    cls = getattr(components, name)
    assert re.fullmatch(r"[a-z][a-z0-9-_]{2,20}[.][A-Z][a-zA-Z0-9-_]{2,49}", cls.TYPE_NAME)
    assert import_utils.import_class_by_path(cls.TYPE_NAME) is cls
    assert not cls.PROPERTIES
    assert compiler_utils.get_artifact_schema(cls)


LOCAL = re.compile(
    r"(?<![\w.])open\(|\bos\.(listdir|makedirs|walk|remove|rename|scandir|mkdir)\b|\bshutil\.|\bbeam\.Pipeline\("
    r"|\bos\.path\.(exists|isdir|isfile|getsize)\b"
)


class _WithoutGuarded(ast.NodeTransformer):
    def visit_FunctionDef(self, node):
        return None if "is_remote(" in ast.unparse(node) else self.generic_visit(node)


def of_any_path(source):
    """Return the source without the functions that call `is_remote`."""
    return ast.unparse(_WithoutGuarded().visit(ast.parse(source)))


@pytest.mark.parametrize("folder", ["example_gen", "vocabulary_gen"])
def test_what_runs_on_beams_workers_reads_and_writes_addresses(folder):
    """Code on workers uses the pipeline that TFX makes, and TFX's file functions, which support gs:// and s3://.

    The driver is not checked, because it does not run on a worker. A function that calls `is_remote` may use Python's
    file functions for local paths.
    """
    for path in (ROOT / folder).glob("*.py"):
        if path.name != "driver.py":
            assert not LOCAL.search(of_any_path(path.read_text())), path
    assert "_make_beam_pipeline()" in (ROOT / folder / "executor.py").read_text()
    assert LOCAL.search(of_any_path("def read(path):\n    return open(path)"))

"""Computes a digest of the code that a run depends on, so that the cache notices a change.

TFX's cache compares only inputs and parameters. A function is given by its dotted path, so a change of its code would
not invalidate the cache. Therefore the components that run the code have the digest of its sources as a parameter.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence

from embedding_core.rooms import ROOMS, hooks
from pipelines.config import PipelineConfig
from pipelines.config.user_modules import source_file

_PREPROCESSING = ("pipelines.preprocessing", "components.transform_graph")
_OURS = ("components", "embedding_core", "pipelines")
_DOTTED = tuple(f"{package}." for package in _OURS)


def code_fingerprint(config: PipelineConfig, component: str, more: Iterable[str] = ()) -> str:
    """Compute a digest of the modules of a component, of the user's own modules, and of what these import.

    Args:
      config: the configuration.
      component: folder of the component in `components`, such as "trainer".
      more: dotted names of further modules of the user, which this component alone runs.
    """
    folder = os.path.join(os.path.dirname(str(source_file("components", config.python_path))), component)
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
    package = f"components.{component}"
    modules = [package, *(f"{package}.{name.removesuffix('.py')}" for name in names if name != "__init__.py")]
    return digest_of_files(loaded_files([*modules, *_users(config), *more], config.python_path))


def component_fingerprint(config: PipelineConfig, component: str) -> str:
    """Compute a digest of the modules that a component loads, none of which is the user's: edits of these keep it."""
    return digest_of_files(loaded_files([f"components.{component}.component"], config.python_path))


def loaded_files(modules: Iterable[str], python_path: str) -> set[str]:
    """Return the files of modules, and of what they import from our packages and `python_path`, also in functions.

    The sources are parsed, not imported. A text that is the name of one of our modules counts as an import of it, and
    `hooks` as an import of the modules that it gives.

    Args:
      modules: dotted names; those that have no source file are skipped.
      python_path: folder of the user's modules.
    """
    files: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        file = None if module in files else source_file(module, python_path)
        if file is None:
            continue
        files[module] = file
        package = module if os.path.basename(file) == "__init__.py" else module.rpartition(".")[0]
        with open(file, "rb") as source:
            names = [*_imports(source.read(), package), module.rpartition(".")[0]]
        waiting += [name for name in names if _is_followed(name, python_path)]
    return set(files.values())


def _is_followed(name: str, python_path: str) -> bool:
    """Return whether a name is of our packages, or of a file in the user's folder: not of installed packages."""
    first, *rest = name.split(".")
    place = os.path.join(python_path, first, *rest)
    return first in _OURS or any(map(os.path.isfile, (f"{place}.py", f"{place}/__init__.py")))


@functools.cache
def _imports(source: bytes, package: str) -> Sequence[str]:
    """Return the names that may be modules in what a source imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a file that Python cannot import either
        return ()
    return list(dict.fromkeys(name for node in _run_nodes(tree) for name in _names_in(node, package)))


def _run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk the tree without what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")):
            yield child
            yield from _run_nodes(child)


def _names_in(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        return [module, *(f"{module}.{alias.name}" for alias in node.names)]
    is_ours = f"{package}.".startswith(_DOTTED)
    if is_ours and isinstance(node, ast.Call) and ast.unparse(node.func) == hooks.__name__:
        of, hook = map(ast.literal_eval, node.args)
        return [f"{of}.{room}.{hook}" for room in ROOMS]
    # `components/__init__.py` names the folders of all components, and loads only the one that is asked for.
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and package != "components":
        return [node.value, node.value.rpartition(".")[0]] if node.value.startswith(_DOTTED) else []
    return []


def preprocessing_fingerprint(config: PipelineConfig) -> str:
    """Compute a digest of the user's module with Transform's function, of our modules, and of what they import."""
    modules = [] if config.preprocessing_fn is None else modules_of([config.preprocessing_fn])
    return digest_of_files(loaded_files([*modules, *_PREPROCESSING], config.python_path))


def digest_of_files(files: Iterable[str]) -> str:
    """Compute the sha256 over the contents of the files, in the order of their base names; paths are not hashed."""
    digest = hashlib.sha256()
    for file in sorted(set(files), key=lambda path: (os.path.basename(path), path)):
        with open(file, "rb") as source:
            digest.update(hashlib.sha256(source.read()).digest())
    return digest.hexdigest()


def _users(config: PipelineConfig) -> Iterator[str]:
    functions = [function for function in (config.preprocessing_fn, config.model.run_fn) if function]
    yield from (config.model.module, *modules_of(functions))


def modules_of(paths: Iterable[str]) -> list[str]:
    """Return the modules of functions or classes that are named by their dotted paths."""
    return [path.rpartition(".")[0] for path in paths]

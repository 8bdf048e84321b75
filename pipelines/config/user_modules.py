"""Finds out what a user's Python modules define by parsing their source; does not import them.

Importing a model's module imports TensorFlow (8 s) and runs code. The syntax tree tells in milliseconds what the
checks of a configuration need: whether a function exists, and which arguments it takes.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from embedding_core.errors import ConfigError

_OWN_PACKAGES = ("pipelines", "components", "embedding_core")
_SCALARS: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
_SEQUENCES = ("tuple", "list", "Sequence", "Iterable")


GIVEN_BY_TRAINER = ("tasks", "lengths")
"""Arguments of `build` that the trainer passes; `model.arguments` must not contain them."""
UNKNOWN: Any = object()
_OF_ALL_MODELS = 3  # `config`, `embeddings` and `dense`, the first arguments of `build`


@dataclasses.dataclass(frozen=True)
class Argument:
    """A keyword argument of a function.

    Attributes:
      annotation: source text of its type, "" if it has none.
      required: whether it has no default.
      default: the default as YAML holds it (a tuple as a list); `UNKNOWN` if the source does not give it as a plain
        value, or if there is none.
    """

    annotation: str
    required: bool
    default: Any = UNKNOWN

    @property
    def has_plain_default(self) -> bool:
        """Whether the default is known from the source alone."""
        return self.default is not UNKNOWN


def parse_module(name: str, python_path: str) -> ast.Module:
    """Parse the source file of a module, which `source_file` finds.

    Raises:
      ConfigError: the module does not exist, or its source is not valid Python.
    """
    file = source_file(name, python_path)
    if file is None:
        raise ConfigError(
            f"module {name!r} does not exist; put its file into {python_path!r}, or correct the dotted path."
        )
    try:
        with open(file, "rb") as source:
            return ast.parse(source.read(), file)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"module {name!r} ({file}) cannot be read as Python: {error}; correct it.") from error


def source_file(name: str, python_path: str) -> str | None:
    """Find the file that an import with `python_path` last on `sys.path` would load; None if there is none."""
    first, *rest = name.split(".")
    if not all(part.isidentifier() for part in (first, *rest)):
        return None
    spec = _top_spec(first, python_path)
    for depth, _ in enumerate(rest):
        if spec is None or spec.submodule_search_locations is None:
            return None
        whole = ".".join([first, *rest[: depth + 1]])
        # `importlib.util.find_spec` of a dotted name would import the parent packages.
        spec = PathFinder.find_spec(whole, list(spec.submodule_search_locations))
    origin = spec.origin if spec else None
    return origin if origin and origin.endswith(".py") else None


def _top_spec(name: str, python_path: str) -> ModuleSpec | None:
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec, such as __main__
        spec = None
    return spec or PathFinder.find_spec(name, [python_path])


def defines(tree: ast.Module, name: str) -> bool:
    """Return whether the module defines the name at its top level: a function, a class, an import or an assignment."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return True
        if isinstance(node, ast.Import | ast.ImportFrom) and any(
            (alias.asname or alias.name) == name for alias in node.names
        ):
            return True
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return True
    return False


def build_arguments(tree: ast.Module) -> dict[str, Argument] | None:
    """Return the arguments of the module's `build` after the first three, which all models have; None if unknown.

    They are unknown if the function takes `**arguments`, or is not defined in the module itself.
    """
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "build"]
    if not nodes or nodes[-1].args.kwarg is not None:
        return None
    taken = nodes[-1].args
    positional = [*taken.posonlyargs, *taken.args]
    required: list[ast.expr | None] = [None] * (len(positional) - len(taken.defaults))
    names = [*positional[_OF_ALL_MODELS:], *taken.kwonlyargs]
    defaults = [*[*required, *taken.defaults][_OF_ALL_MODELS:], *taken.kw_defaults]
    return {
        parameter.arg: _argument(tree, parameter, default) for parameter, default in zip(names, defaults, strict=True)
    }


def _argument(tree: ast.Module, node: ast.arg, default: ast.expr | None) -> Argument:
    annotation = ast.unparse(node.annotation) if node.annotation else ""
    return Argument(annotation, default is None, UNKNOWN if default is None else _plain_value(tree, default))


def _plain_value(tree: ast.Module, node: ast.expr) -> Any:
    """Evaluate the expression, or the module's constant that it names; `UNKNOWN` if it does not consist of literals."""
    if isinstance(node, ast.Name):
        constants = [
            statement for statement in tree.body if isinstance(statement, ast.Assign) and _assigns(statement, node.id)
        ]
        node = constants[0].value if len(constants) == 1 else node
    try:
        return _plain(ast.literal_eval(node))
    except ValueError:
        return UNKNOWN


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(f"{value!r} is not a plain value")


def accepts(annotation: str, value: Any) -> bool:
    """Return whether a plain value fits the annotation, given as source text; unknown types accept every value."""
    if not annotation:
        return True
    return _fits(ast.parse(annotation, mode="eval").body, value)


def _fits(node: ast.expr, value: Any) -> bool:
    if isinstance(node, ast.BinOp):
        return _fits(node.left, value) or _fits(node.right, value)
    if isinstance(node, ast.Constant):
        return value is None if node.value is None else accepts(str(node.value), value)
    if isinstance(node, ast.Subscript):
        return _fits_generic(ast.unparse(node.value).rpartition(".")[2], node.slice, value)
    kinds = _SCALARS.get(ast.unparse(node))
    if kinds is None:
        return True
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _fits_generic(name: str, inner: ast.expr, value: Any) -> bool:
    parts: Sequence[ast.expr] = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if name == "Optional":
        return value is None or _fits(inner, value)
    if name == "Union":
        return any(_fits(part, value) for part in parts)
    if name == "Literal":
        return value in [ast.literal_eval(part) for part in parts]
    if name in _SEQUENCES:
        return isinstance(value, list | tuple) and all(_fits(parts[0], item) for item in value)
    return True


def check_not_shadowed(python_path: str) -> None:
    """Refuse another package that has the name of one of ours, on `sys.path` or in the user's folder.

    Raises:
      ConfigError: there is such a package; the message gives its path.
    """
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    for name in _OWN_PACKAGES:
        # Python imports the first match on sys.path. The user's folder comes last, so a package there with one of our
        # names could never be imported.
        seen = (_package_at(name, place or os.getcwd()) for place in sys.path)
        for package in (next(filter(None, seen), None), _package_at(name, python_path)):
            if package and os.path.dirname(os.path.realpath(package)) != ours:
                raise ConfigError(
                    f"{package!r} has the name of our package {name!r} and would be imported in its place: rename it, "
                    "or move the configuration (or the folder on `sys.path`) elsewhere."
                )


def _package_at(name: str, folder: str) -> str | None:
    """Find the package or module of that name in the folder; a folder without Python files does not count."""
    if os.path.isfile(os.path.join(folder, f"{name}.py")):
        return os.path.join(folder, f"{name}.py")
    package = os.path.join(folder, name)
    if os.path.isdir(package) and any(file.endswith(".py") for file in os.listdir(package)):
        return package
    return None

"""Finds the optional rooms that are installed: folders that the rest of the project works without.

A room has a folder of its name in each package that it needs, and nothing outside imports it. It enters through hooks:
modules with fixed names, such as `command` in `pipelines/<room>`, which the rest of the project asks for with `hooks`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)

ROOMS: Mapping[str, tuple[str, ...]] = {
    "dask": ("beam",),
    "deltas": ("push.deltas",),
    "new_project": (),
    "parameter_server": ("kubeflow.cluster", "training.strategy=parameter_server", "ParameterServerStrategyV2"),
    "serve": (),
    "shadow": ("shadow",),
    "sparse_cores": ("embedding_feature=V2", "sparse_core_embedding_config"),
    "tpu_compiler": ("--compiler", "--compiler-python", "--sparsecore-python"),
    "triton": (),
}
"""What belongs to each room: keys of the YAML file, values of other keys as `<key>=<value>`, options of commands,
classes of TensorFlow's strategies, and arguments of the Keras layer.

`make campaign NAME=removable` takes away one room after the other.
"""

MISSING = "it belongs to the optional part {!r}, which is not installed; install the whole of tfx-embeddings."
_PACKAGES = ("embedding_core", "components", "pipelines")


@functools.cache
def hooks(package: str, name: str) -> tuple[Any, ...]:
    """Import the modules `<package>.<room>.<name>` of the rooms that are installed and have one.

    Both arguments must be written out: the fingerprint of a component's code finds these modules by the call.
    """
    return tuple(importlib.import_module(f"{package}.{room}.{name}") for room in ROOMS if _exists(package, room, name))


def _exists(*names: str) -> bool:
    """Tell whether a module exists, without importing more than the packages that it is in."""
    return all(importlib.util.find_spec(".".join(names[:depth])) for depth in range(2, len(names) + 1))


def is_installed(room: str) -> bool:
    """Tell whether the folders of a room are here."""
    return any(_exists(package, room) for package in _PACKAGES)


def values_of(key: str) -> list[str]:
    """Return the values that the installed rooms add to a key of the YAML file, such as "training.strategy"."""
    entries = [entry.partition("=") for room, entries in ROOMS.items() if is_installed(room) for entry in entries]
    return [value for of, _, value in entries if of == key and value]


def room_of(key: str) -> str | None:
    """Name the room that is not installed and has a key, `<key>=<value>` or option of this name; None if none has."""
    owners = [room for room, keys in ROOMS.items() if key in {name.rpartition(".")[2] for name in keys}]
    return next((room for room in owners if not is_installed(room)), None)


def with_keys(section: str, *rooms: Sequence[Any]) -> Callable[[_Class], _Class]:
    """Add the rooms' keys to a section of the configuration, a subclass of `embedding_core.schema.Section`.

    Args:
      section: path of the section in the YAML file, such as "push"; "" for the whole file.
      *rooms: what `hooks` gives for modules with a mapping `KEYS`: the path of a section, to a subclass of `Section`
        with the keys that the room adds to it.

    Returns:
      A decorator of the section. An instance is one of the room's class too, by which the room's code reads its keys.
    """
    added = tuple(module.KEYS[section] for modules in rooms for module in modules if section in module.KEYS)

    def extend(own: _Class) -> _Class:
        names = ("__module__", "__qualname__", "__doc__")
        return type(own)(own.__name__, (*added, own), {name: getattr(own, name) for name in names}) if added else own

    return extend

"""Matches nested structures of dicts, lists, tuples and namedtuples: a value belongs to the leaf with the same path.

A path is a tuple of keys, field names and positions. Paths are never compared as text, because 1 would equal "1", and
("a", "b") would equal ("a/b",). Whatever `tf.nest.assert_same_structure` accepts is accepted here, and also a list in
place of a tuple, since Keras writes tuples as lists into its configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.errors import ConfigError, DataError

Path: TypeAlias = tuple[Any, ...]
Items: TypeAlias = dict[Any, Any]  # by key, field name or position
Nested: TypeAlias = Any  # a leaf, or dicts, lists, tuples and namedtuples of leaves


def paths_of(structure: Nested) -> list[Path]:
    """Return the path of every leaf of a structure, in the order of tf.nest.flatten; () for a lone leaf.

    Raises:
      ConfigError (ValueError): keys that cannot be sorted, or a container of another type.
    """
    if not _kind(structure):
        return [()]
    return [(key, *path) for key, item in _items(structure).items() for path in paths_of(item)]


def path_name(path: Path) -> str:
    """Return the path as messages show it; two paths may have the same name."""
    return "/".join(map(str, path))


def flat_like(what: str, structure: Nested, given: Nested) -> list[Nested]:
    """Return the values of `given`, which must have the configured structure, in the order of tf.nest.flatten.

    Args:
      what: name of the argument `given`, for messages.
      structure: the configured structure.
      given: values in the same structure.

    Raises:
      DataError (ValueError): a value is missing or not configured, or a container has another type.
    """
    return [value for _, value in flat_pairs(what, structure, given)]


def flat_pairs(
    what: str, structure: Nested, given: Nested, *, partial: bool = False, nested_values: bool = False
) -> list[tuple[Nested, Nested]]:
    """Return the leaves of a structure with the values at their paths.

    Args:
      what: name of the argument `given`, for messages.
      structure: the configured structure.
      given: values in the same structure.
      partial: whether `given` may lack keys of dicts and the last items of lists and tuples, as TensorFlow allows when
        it serves; the order is then that of tf.nest.flatten(given).
      nested_values: whether a value may itself be a list or dict, as a shape is.

    Returns:
      (leaf, value) in the order of tf.nest.flatten(structure).

    Raises:
      DataError (ValueError): see `flat_like`.
    """
    pairs: list[tuple[Nested, Nested]] = []

    def match(leaf: Nested, value: Nested, path: Path) -> None:
        kind = _kind(leaf)
        if not kind and nested_values:
            pairs.append((leaf, value))
            return
        if kind != _kind(value):
            raise DataError(
                f"`{what}` do not have the structure of the configuration: {_at(path)} is a {_type_name(value)}, and "
                f"a {_type_name(leaf)} is configured there; give {_named([path])} as configured."
            )
        if not kind:
            pairs.append((leaf, value))
            return
        items, values = _items(leaf), _unsorted(value)
        _check_keys(what, path, items, values, partial=partial)
        for key in _items(value) if partial else items:
            match(items[key], values[key], (*path, key))

    match(structure, given, ())
    return pairs


def _check_keys(what: str, path: Path, items: Items, values: Items, *, partial: bool) -> None:
    missing = [] if partial else [(*path, key) for key in items if key not in values]
    extra = [(*path, key) for key in values if key not in items]
    if missing or extra:
        raise DataError(
            f"`{what}` do not have the structure of the configuration: missing {_named(missing)}, not configured "
            f"{_named(extra)}; give {'some of' if partial else 'exactly'} {_named((*path, key) for key in items)}."
        )


def _kind(structure: Nested) -> str:
    """Return the kind of a container: "dict", "list" (or tuple), or the fields of a namedtuple; "" for a leaf."""
    if isinstance(structure, Mapping):
        return "dict"
    if isinstance(structure, list | tuple):
        fields = getattr(structure, "_fields", None)
        return "list" if fields is None else f"{tuple(fields)}"
    if tf.nest.is_nested(structure):
        raise ConfigError(
            f"A structure holds a {type(structure).__name__}, whose items have no path: use dicts, lists, tuples and "
            "namedtuples."
        )
    return ""


def _unsorted(structure: Nested) -> Items:
    if isinstance(structure, Mapping):
        return dict(structure.items())
    return dict(zip(getattr(structure, "_fields", range(len(structure))), structure, strict=True))


def _items(structure: Nested) -> Items:
    """Return the items by key, in the order of tf.nest.flatten."""
    items = _unsorted(structure)
    try:
        return {key: items[key] for key in sorted(items)} if isinstance(structure, Mapping) else items
    except TypeError as error:
        raise ConfigError(
            f"The keys {list(structure)} of a dict cannot be sorted, as TensorFlow does: use keys of one type."
        ) from error


def _type_name(value: Nested) -> str:
    """Return the type of a container or leaf, with the fields of a namedtuple, as error messages show it."""
    kind = _kind(value)
    return type(value).__name__ if kind in ("", "dict", "list") else f"{type(value).__name__} of {kind}"


def _at(path: Path) -> str:
    return f"the item at {_named([path])}" if path else "the whole"


def _named(paths: Iterable[Path]) -> list[Any]:
    """Return paths as error messages show them: a path of one key is that key, so that 1 and "1" differ."""
    return [path[0] if len(path) == 1 else path for path in paths]

"""Applies the overrides of the command line, `--set a.b.c=value`, to the values of the file."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Union

from embedding_core.errors import ConfigError
from embedding_core.schema import ChosenBy, Section
from pipelines.config.yaml_text import parse_value


def apply_overrides(
    tp: Any, mapping: Any, overrides: Iterable[str], lines: dict[str, int | str], mistakes: list[str]
) -> Any:
    """Return the values with every override applied, in order: the last one of a key counts.

    The key of a list's entry is its position from 0; the position after the last entry appends. A list that the file
    leaves out starts from its default. Short forms are expanded, so that `model.arguments.depth=3` works if the file
    says `model: ranking`.

    Args:
      tp: type of the whole configuration.
      mapping: its plain values.
      overrides: texts `key=value`; the value is YAML.
      lines: source of every dotted path, which is its line in the file; an override becomes the source of its path.
      mistakes: list to which a line is added for every override that cannot be applied: it has no `=`, is not YAML,
        or names a key that cannot exist.
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        path = key.strip().split(".")
        try:
            if not equals or not all(path):
                raise ConfigError(f"--set {override!r}: it must be key=value, such as training.batch_size=512.")
            mapping = _put(tp, mapping, path, _value(text, override), override)
        except ConfigError as error:
            mistakes.append(str(error))
        lines[key.strip()] = f"--set {override!r}"
    return mapping


def _value(text: str, override: str) -> Any:
    try:
        return parse_value(text, f"--set {override!r}")
    except ConfigError as error:
        raise ConfigError(f"{error} A text that YAML reads as one of its signs needs quotes: '\"{text}\"'.") from error


def _put(tp: Any, value: Any, path: list[str], new: Any, override: str) -> Any:
    if not path:
        return new
    value = _expanded(tp, value)
    if value is None:
        value = [] if _is_list(tp) else {}
    key, rest = path[0], path[1:]
    if isinstance(value, list):
        if not key.isdecimal() or int(key) > len(value):
            raise ConfigError(f"--set {override!r}: {key!r} must be a position from 0 to {len(value)} (appends).")
        index = int(key)
        old = value[index] if index < len(value) else None
        return [*value[:index], _put(_child_type(tp, value, index), old, rest, new, override), *value[index + 1 :]]
    if not isinstance(value, dict):
        raise ConfigError(f"--set {override!r}: {value!r} must be a mapping, to have the key {key!r}; set that first.")
    # Keep the key as it is in the file: 1 and "1" are the same key.
    name = next((known for known in value if str(known) == key), key)
    child = _child_type(tp, value, key)
    # A default list is needed now, because a position refers to it; other missing keys get their defaults later.
    old = value.get(name)
    if name not in value and _is_list(child):
        old = _default_of(tp, value, key)
    return {**value, name: _put(child, old, rest, new, override)}


@functools.cache
def _hints(section: type[Section]) -> dict[str, Any]:
    hints = typing.get_type_hints(section, include_extras=True)
    return {key: hints[name] for key, name in zip(section.keys(), section.model_fields, strict=True)}


def _bare(tp: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type without its annotations, and the annotations."""
    return (tp.__origin__, tp.__metadata__) if typing.get_origin(tp) is typing.Annotated else (tp, ())


def _alternatives(tp: Any) -> list[Any]:
    tp = _bare(tp)[0]
    if typing.get_origin(tp) not in (Union, types.UnionType):
        return [tp]
    return [each for one in typing.get_args(tp) for each in _alternatives(one)]


def _notes(tp: Any) -> list[Any]:
    """Return the annotations of the type, and of its alternatives."""
    tp, notes = _bare(tp)
    union = typing.get_origin(tp) in (Union, types.UnionType)
    return [*notes, *(note for one in (typing.get_args(tp) if union else ()) for note in _notes(one))]


def _section_type(tp: Any, value: Any) -> type[Section] | None:
    """Return the section that the value is read as; None if the type does not allow a section."""
    sections = [one for one in _alternatives(tp) if isinstance(one, type) and issubclass(one, Section)]
    key = next((note.key for note in _notes(tp) if isinstance(note, ChosenBy)), None)
    if key is not None and isinstance(value, Mapping):
        sections = [one for one in sections if value.get(key) in one.words_of(key)] or sections
    return sections[0] if sections else None


def _child_type(tp: Any, value: Any, key: str | int) -> Any:
    """Return the type of the entry at a key or list position of the value; Any if it is unknown."""
    section = _section_type(tp, value)
    if section is not None:
        return _hints(section).get(str(key), Any)
    for one in _alternatives(tp):
        if typing.get_origin(one) is tuple:
            return typing.get_args(one)[0]
        if typing.get_origin(one) is Mapping:
            return typing.get_args(one)[1]
    return Any


def _is_list(tp: Any) -> bool:
    """Return whether the type allows a list, and does not allow a section."""
    return _section_type(tp, None) is None and any(typing.get_origin(one) is tuple for one in _alternatives(tp))


def _default_of(tp: Any, value: Any, key: str) -> Any:
    """Return the plain default of a key of the section that the value is read as; None if the key has no default."""
    section = _section_type(tp, value)
    fields = {} if section is None else dict(zip(section.keys(), section.model_fields.values(), strict=True))
    default = fields[key].get_default(call_default_factory=True) if key in fields else None
    return list(default) if isinstance(default, tuple) else default


def _expanded(tp: Any, value: Any) -> Any:
    """Return the value with every short form expanded, at any depth; leave everything else as it is."""
    if isinstance(value, str):
        section = _section_type(tp, value)
        keys = [note.key for note in _notes(tp) if isinstance(note, ChosenBy)]
        key = keys[0] if keys else section.SHORT if section else ""
        return {key: value} if key else value
    if isinstance(value, Mapping):
        return {key: _expanded(_child_type(tp, value, key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_expanded(_child_type(tp, value, index), item) for index, item in enumerate(value)]
    return value

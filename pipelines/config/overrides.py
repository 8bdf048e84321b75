"""`--set a.b.c=value`: values from the command line, put over those of the file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from embedding_core.errors import ConfigError
from pipelines.config.reading import child_type, default_of, expand, is_list
from pipelines.config.yaml_text import parse_value

__all__ = ["apply_overrides"]


def apply_overrides(
    tp: Any, mapping: Any, overrides: Iterable[str], lines: dict[str, int | str], mistakes: list[str]
) -> Any:
    """The values with every override put in its place, later ones over earlier ones.

    A list takes positions from 0, and one past its end appends; a list that the file leaves out starts from its
    default. Short forms are written out on the way, so that `model.arguments.depth=3` works if the file says
    `model: ranking`.

    Args:
      tp: type of the whole configuration.
      mapping: its plain values.
      overrides: texts `key=value`; the value is YAML.
      lines: place of every dotted path; that of an override is itself.
      mistakes: gets a line for every override that cannot be put: no `=`, no YAML, or a place that cannot be.
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
        raise ConfigError(f"{error} A text that YAML reads as a sign of its own needs quotes: '\"{text}\"'.") from error


def _put(tp: Any, value: Any, path: list[str], new: Any, override: str) -> Any:
    if not path:
        return new
    value = expand(tp, value)
    if value is None:
        value = [] if is_list(tp) else {}
    key, rest = path[0], path[1:]
    if isinstance(value, list):
        if not key.isdecimal() or int(key) > len(value):
            raise ConfigError(f"--set {override!r}: {key!r} must be a position from 0 to {len(value)} (appends).")
        index = int(key)
        old = value[index] if index < len(value) else None
        return [*value[:index], _put(child_type(tp, value, index), old, rest, new, override), *value[index + 1 :]]
    if not isinstance(value, dict):
        raise ConfigError(
            f"--set {override!r}: {value!r} stands where the mapping with {key!r} should; set that first."
        )
    # Keys as the file has them: 1 and "1" are one.
    name = next((known for known in value if str(known) == key), key)
    child = child_type(tp, value, key)
    # What a mapping lacks is filled in when it is read; a list has to be whole for its positions to mean anything.
    old = value.get(name)
    if name not in value and is_list(child):
        old = default_of(tp, value, key)
    return {**value, name: _put(child, old, rest, new, override)}

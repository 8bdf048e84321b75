"""From plain YAML or JSON values to frozen dataclasses, guided by their type hints.

Every mistake becomes a `Problem` with the path of its key; reading goes on after it, so that one run
reports all of them. Two things in a type hint say more than the type: `Rule` (a test with its words) and
`Parse` (a function that makes the value); a class attribute `SHORT` names the key that a lone string
stands for (``model: ranking`` is ``model: {name: ranking}``).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

from embedding_core.errors import nearest

__all__ = [
    "INVALID",
    "Parse",
    "Path",
    "Problem",
    "Rule",
    "child_type",
    "default_of",
    "dotted",
    "expand",
    "is_list",
    "is_section",
    "key_of",
    "plain",
    "read",
    "section_type",
]

Path = tuple[str | int, ...]
INVALID: Any = object()


@dataclasses.dataclass(frozen=True)
class Rule:
    """A test that a value of the right type has to pass.

    Attributes:
      test: whether the value is accepted.
      words: the rule, as in "it must be <words>".
    """

    test: Callable[[Any], bool]
    words: str


@dataclasses.dataclass(frozen=True)
class Parse:
    """A function that makes the value and raises ValueError with the rule and the remedy.

    Attributes:
      make: the function.
      short: the key that a lone text stands for, as `SHORT` of a section; "" if a text is not a short form.
    """

    make: Callable[[Any], Any]
    short: str = ""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One mistake.

    Attributes:
      path: keys and list positions from the top of the configuration.
      text: what is wrong and what to do, to be read after the path.
    """

    path: Path
    text: str


def dotted(path: Path) -> str:
    """The path as a user writes it, also after `--set`."""
    return ".".join(map(str, path))


def is_section(tp: Any) -> bool:
    """Whether the type is one of the dataclasses of the configuration."""
    return isinstance(tp, type) and dataclasses.is_dataclass(tp)


def key_of(field: str) -> str:
    """The key that a field is written under: `in_` stands for the Python keyword."""
    return field.rstrip("_")


@functools.cache
def _hints(section: type) -> dict[str, Any]:
    hints = typing.get_type_hints(section, include_extras=True)
    return {key_of(field.name): hints[field.name] for field in dataclasses.fields(section)}


def _bare(tp: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type without its annotations, and these."""
    if typing.get_origin(tp) is typing.Annotated:
        return tp.__origin__, tp.__metadata__
    return tp, ()


def _alternatives(tp: Any) -> tuple[Any, ...]:
    tp = _bare(tp)[0]
    return typing.get_args(tp) if typing.get_origin(tp) in (Union, types.UnionType) else (tp,)


def section_type(tp: Any, value: Any) -> Any:
    """The dataclass that the value is to be read as, None where the type holds no dataclass.

    Of several, the one whose first field (a Literal) has the value's word for it, or the first of all.
    """
    sections = [one for one in _alternatives(tp) if is_section(one)]
    if len(sections) > 1 and isinstance(value, Mapping):
        for section in sections:
            key, hint = next(iter(_hints(section).items()))
            if value.get(key) in typing.get_args(hint):
                return section
    return sections[0] if sections else None


def child_type(tp: Any, value: Any, key: str | int) -> Any:
    """The type of what stands under the key (or list position) of a value of that type; Any where unknown."""
    section = section_type(tp, value)
    if section is not None:
        return _hints(section).get(str(key), Any)
    for one in _alternatives(tp):
        arguments = typing.get_args(one)
        if typing.get_origin(one) is tuple:
            return arguments[0]
        if typing.get_origin(one) is Mapping:
            return arguments[1]
    return Any


def is_list(tp: Any) -> bool:
    """Whether the type holds a list and no mapping."""
    return section_type(tp, None) is None and any(typing.get_origin(one) is tuple for one in _alternatives(tp))


def default_of(tp: Any, value: Any, key: str) -> Any:
    """Plain default of a key of the section that the value is read as; None if it has none."""
    section = section_type(tp, value)
    for field in dataclasses.fields(section) if section is not None else ():
        if key_of(field.name) == key:
            if field.default is not dataclasses.MISSING:
                return plain(field.default)
            return None if field.default_factory is dataclasses.MISSING else plain(field.default_factory())
    return None


def plain(value: Any) -> Any:
    """The value as YAML and JSON hold it: sections become mappings, tuples lists."""
    if dataclasses.is_dataclass(value):
        return {key_of(field.name): plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _short(tp: Any, section: Any) -> str:
    """The key that a lone text stands for, or ""."""
    parsers = [note.short for note in _bare(tp)[1] if isinstance(note, Parse)]
    return getattr(section, "SHORT", "") or next(iter(parsers), "")


def expand(tp: Any, value: Any) -> Any:
    """The value with every short form written out, at any depth; anything else as it is."""
    section = section_type(tp, value)
    if isinstance(value, str) and _short(tp, section):
        value = {_short(tp, section): value}
    if isinstance(value, Mapping):
        return {key: expand(child_type(tp, value, key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [expand(child_type(tp, value, index), item) for index, item in enumerate(value)]
    return value


def read(tp: Any, value: Any, path: Path, problems: list[Problem]) -> Any:
    """The value as the type says, or INVALID after adding to `problems`."""
    bare, notes = _bare(tp)
    parsers = [note for note in notes if isinstance(note, Parse)]
    before = len(problems)
    result = _parse(parsers[0], value, path, problems) if parsers else _read_bare(bare, value, path, problems)
    if len(problems) > before:
        return INVALID
    for rule in (note for note in notes if isinstance(note, Rule)):
        if result is not None and not rule.test(result):
            problems.append(Problem(path, f"is {value!r}: it must be {rule.words}."))
            return INVALID
    return result


def _parse(parser: Parse, value: Any, path: Path, problems: list[Problem]) -> Any:
    try:
        return parser.make(value)
    except (ValueError, TypeError) as error:
        problems.append(Problem(path, f"is {value!r}: {error}"))
        return INVALID


def _read_bare(tp: Any, value: Any, path: Path, problems: list[Problem]) -> Any:
    if tp is Any:
        return value
    options = _alternatives(tp)
    if value is None and type(None) in options:
        return None
    section = section_type(tp, value)
    if section is not None:
        return _read_section(section, value, path, problems, options)
    options = tuple(one for one in options if one is not type(None))
    if len(options) == 1:
        return _read_one(options[0], value, path, problems)
    for option in options:
        attempt: list[Problem] = []
        result = _read_one(option, value, path, attempt)
        if not attempt:
            return result
    problems.append(_wrong_type(options, value, path))
    return INVALID


def _read_one(tp: Any, value: Any, path: Path, problems: list[Problem]) -> Any:
    origin = typing.get_origin(tp)
    if origin is typing.Annotated:
        return read(tp, value, path, problems)
    if origin is tuple and isinstance(value, list | tuple):
        item_type = typing.get_args(tp)[0]
        return tuple(read(item_type, item, (*path, index), problems) for index, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        item_type = typing.get_args(tp)[1]
        return {str(key): read(item_type, item, (*path, str(key)), problems) for key, item in value.items()}
    if origin is Literal and value in typing.get_args(tp) and not isinstance(value, bool):
        return value
    if tp is float and _is_number(value):
        return float(value)
    if (tp in (str, bool) and type(value) is tp) or (tp is int and type(value) is int):
        return value
    problems.append(_wrong_type((tp,), value, path))
    return INVALID


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _wrong_type(options: tuple[Any, ...], value: Any, path: Path) -> Problem:
    remedy = ""
    words = [word for one in options if typing.get_origin(one) is Literal for word in typing.get_args(one)]
    if words and isinstance(value, str):
        close = nearest(value, words)
        remedy = f" D{close[1:]}" if close.startswith("did you mean") else ""
    elif str in options and _is_number(value):
        remedy = f' Put it in quotes: "{value}".'
    return Problem(path, f"is {value!r}: it must be {' or '.join(map(_words, options))}.{remedy}")


def _words(tp: Any) -> str:
    """The type in the words of an error message."""
    origin = typing.get_origin(tp)
    if origin is typing.Annotated:
        rules = [note.words for note in tp.__metadata__ if isinstance(note, Rule)]
        return rules[0] if rules else _words(tp.__origin__)
    if origin is Literal:
        choices = [str(word) for word in typing.get_args(tp)]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else repr(choices[0])
    if origin is tuple:
        return "a list"
    if origin is Mapping or is_section(tp):
        return "a mapping (`key: value` lines)"
    return {str: "text", int: "a whole number", float: "a finite number", bool: "true or false"}.get(tp, str(tp))


def _read_section(section: Any, value: Any, path: Path, problems: list[Problem], options: tuple[Any, ...]) -> Any:
    value = expand(section, value)
    if not isinstance(value, Mapping):
        keys = ", ".join(_hints(section))
        problems.append(Problem(path, f"is {value!r}: it must be a mapping with keys out of {keys}."))
        return INVALID
    before = len(problems)
    hints = _hints(section)
    for key in value:
        if key not in hints:
            problems.append(Problem((*path, str(key)), f"is no known key: {nearest(key, hints)}"))
    fields = {}
    for field in dataclasses.fields(section):
        key = key_of(field.name)
        if key in value:
            fields[field.name] = read(hints[key], value[key], (*path, key), problems)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            needed = ", ".join(map(_words, _plain(hints[key])))
            problems.append(Problem((*path, key), f"is missing: it has no default; give it {needed}."))
    if len(problems) > before:
        return INVALID
    return _checked(section(**fields), path, problems)


def _plain(tp: Any) -> tuple[Any, ...]:
    return tuple(one for one in _alternatives(tp) if one is not type(None))


def _checked(section: Any, path: Path, problems: list[Problem]) -> Any:
    """The section where its own rules over several fields hold (`mistakes` yields key and text)."""
    mistakes = list(section.mistakes()) if hasattr(section, "mistakes") else []
    problems += [Problem((*path, *([key] if key else [])), text) for key, text in mistakes]
    return INVALID if mistakes else section

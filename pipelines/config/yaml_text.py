"""Reads and writes plain values as YAML 1.2, in which `no` is not a boolean, and finds the line of every key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from embedding_core.errors import ConfigError
from embedding_core.storage import bounds


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of YAML 1.2, except that 010, 0o7 and 0x1F are text, and `<<` merges.

    YAML 1.1 reads NO as false, 1:30 as 90, 010 as 8, 2011-10-31 as a date, and 1e-3 as text.
    """

    _nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose one node; refuse to go on if there are more than a text may have, before they are all composed."""
        self._nodes += 1
        if self._nodes > 2 * bounds.SETTINGS_VALUES:  # a key is a node too
            raise yaml.YAMLError(f"it has more than {bounds.SETTINGS_VALUES:,} values: shorten its lists")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), list(_first))


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    """Return the whole number; refuse more than 64 bits, which ML Metadata and TensorFlow cannot store."""
    text = str(loader.construct_scalar(node))
    value = int(text) if len(text) <= _MOST_DIGITS else None
    if value is None or not -(2**63) <= value < 2**63:
        shown = text if len(text) <= 2 * _MOST_DIGITS else f"{text[:_MOST_DIGITS]}..."
        line = node.start_mark.line + 1
        raise ValueError(f"line {line}: {shown} is not a whole number of 64 bits; if it is a text, put it in quotes")
    return value


def _construct_text(loader: _Loader, node: yaml.ScalarNode) -> str:
    text = str(loader.construct_scalar(node))
    # JSON escapes a character beyond 16 bits as two surrogates, which PyYAML does not combine.
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper; quotes each text that `_Loader`, or a reader of YAML 1.1, would read as another value."""


_Dumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, []), *_Loader.yaml_implicit_resolvers.get(first, [])]
    for first in {**yaml.SafeDumper.yaml_implicit_resolvers, **_Loader.yaml_implicit_resolvers}
}
_Loader.add_constructor("tag:yaml.org,2002:str", _construct_text)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


_MOST_DIGITS = 20  # of a whole number of 64 bits, with its sign


class Parsed(NamedTuple):
    """What a YAML text holds.

    Attributes:
      values: plain values.
      lines: the line (from 1) of every dotted path.
      duplicates: a message for every duplicate key of a mapping.
    """

    values: Any
    lines: dict[str, int]
    duplicates: list[str]


def parse_yaml(text: str, where: str) -> Parsed:
    """Return the values of a YAML text, the line of every key, and the duplicate keys.

    Args:
      text: YAML, or JSON.
      where: name of the text in messages.

    Raises:
      ConfigError: the text is not YAML, is beyond a bound of `bounds`, or an alias refers to a value that contains the
        alias.
    """
    lines: dict[str, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Parsed(None, lines, [])
        duplicates = [f"{where}:{line}: {message}" for line, message in _walk(node, (), lines, ())]
        return Parsed(loader.construct_document(node), lines, duplicates)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        message = " ".join(filter(None, [error.context, error.problem]))
        raise ConfigError(f"{where}{line}: this is not YAML: {message}; correct the text there.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: this is not YAML: {' '.join(str(error).split())}; correct the text.") from error
    except RecursionError as error:
        raise ConfigError(
            f"{where}: it is nested too deeply: at most {bounds.SETTINGS_LEVELS} levels; flatten it."
        ) from error
    except (ValueError, TypeError, AttributeError) as error:  # from PyYAML, if a value does not fit its tag
        raise ConfigError(f"{where}: a value cannot be read: {error}; correct the text.") from error


def parse_value(text: str, where: str) -> Any:
    """Parse one value, such as the text after `--set key=`."""
    parsed = parse_yaml(text, where)
    if parsed.duplicates:
        raise ConfigError("\n".join(parsed.duplicates))
    return parsed.values


def yaml_of(values: Any) -> str:
    """Write plain values as a YAML text that `parse_yaml` reads back unchanged."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)


def yaml_documents(documents: Sequence[Any]) -> str:
    """Write documents of plain values, with sorted keys; readers of YAML 1.1 and of 1.2 read the same values."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=True, width=120)


def _walk(node: Any, path: tuple[str, ...], lines: dict[str, int], above: tuple[int, ...]) -> Any:
    """Note the line of every key; yield line and message of the duplicate keys of a mapping."""
    if id(node) in above:
        raise yaml.YAMLError(f"`{'.'.join(path)}` is an alias of a value that contains it")
    if len(above) > bounds.SETTINGS_LEVELS:
        raise RecursionError
    if len(lines) > bounds.SETTINGS_VALUES:  # a few lines of aliases to aliases can expand to billions of values
        raise yaml.YAMLError(f"it expands to more than {bounds.SETTINGS_VALUES:,} values: use fewer aliases (*name)")
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[".".join((*path, str(index)))] = item.start_mark.line + 1
            yield from _walk(item, (*path, str(index)), lines, above)
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, int] = {}
    for index, (key, value) in enumerate(node.value):
        line, name = key.start_mark.line + 1, str(key.value)
        here = (*path, name)
        if key.tag == "tag:yaml.org,2002:merge":  # may occur several times, and each is expanded
            here = (*path, f"{name} {index}")
        elif name in first:  # not walked, since its paths are noted already and would not count as further values
            yield line, f"`{'.'.join(here)}` is a duplicate of line {first[name]}: keep one of the two."
            continue
        first[name] = line
        lines[".".join(here)] = line
        yield from _walk(value, here, lines, above)

"""Reads and writes YAML, and loads a file or plain values as a checked `PipelineConfig`.

All mistakes are reported at once, one line of text each, with the place in the file. YAML is read as version 1.2, in
which `no` is not a boolean.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, NamedTuple, Union

import yaml
from pydantic import ValidationError, create_model

from components.example_gen.settings import format_of
from embedding_core.errors import ConfigError
from embedding_core.schema import ChosenBy, Problem, Section, problems_of
from embedding_core.storage import bounds, read_bounded
from pipelines.config.metrics import Evaluation
from pipelines.config.pipeline_config import WORDS, Model, PipelineConfig
from pipelines.config.rules import RULES
from pipelines.config.sections import Data, NoFilesError, data_files, resolve
from pipelines.config.user_modules import GIVEN_BY_TRAINER, build_arguments, parse_module


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


# Writes out the defaults that depend on other keys or on the model's source, so that no null hides a value.


# The range of a cosine is too narrow for a softmax. These were chosen by the ranking of validation data, since a lower
# softmax loss is not a better ranking (decision 12).
_COSINE_TEMPERATURE = 0.1
_TWO_TOWER_TEMPERATURE = 0.15


def resolved(config: PipelineConfig) -> PipelineConfig:
    """Return the checked configuration with every default that has a value written out; loading it changes nothing.

    A null that is left means a rule that needs the data ("once per epoch", "1/sqrt(dim)") or "none".
    """
    features = config.features.replace(
        categorical=tuple(
            feature.replace(column=feature.source, vocabulary=feature.vocabulary_name, table=feature.table_name)
            for feature in config.features.categorical
        ),
        dense=tuple(feature.replace(column=feature.source) for feature in config.features.dense),
    )
    arguments = {**_defaults(config.model, config.python_path), **config.build_arguments}
    training = config.training
    if training.softmax is not None and training.softmax.temperature is None:
        of_cosine = _TWO_TOWER_TEMPERATURE if config.model.name == "two_tower" else _COSINE_TEMPERATURE
        temperature = of_cosine if arguments.get("normalize") else 1.0
        training = training.replace(softmax=training.softmax.replace(temperature=temperature))
    return config.replace(
        data=_with_format(config.data),
        features=features,
        model=config.model.replace(arguments=arguments),
        training=training,
        evaluation=_evaluation(config),
        push=config.push.replace(destination=config.push_destination),
        metadata=config.metadata_path,
    )


def _evaluation(config: PipelineConfig) -> Evaluation:
    """Write out the default metrics of a single label; with several labels, each label has its own defaults."""
    if len(config.tasks) > 1 or config.evaluation.metrics is not None:
        return config.evaluation
    return config.evaluation.replace(metrics=config.evaluation.metrics_of(config.tasks[0]))


def _with_format(data: Data) -> Data:
    # A copy keeps the list of files, which is the same if the format is given.
    return data if data.format else data.model_copy(update={"format": format_of(data_files(data)[0])})


def _defaults(model: Model, python_path: str) -> Mapping[str, Any]:
    """Return the defaults of `build` that its source gives as plain values; the source is parsed, not imported."""
    known = build_arguments(parse_module(model.module, python_path)) or {}
    for name in GIVEN_BY_TRAINER:
        known.pop(name, None)
    return {name: argument.default for name, argument in known.items() if argument.has_plain_default}


# Applies the overrides of the command line, `--set a.b.c=value`, to the values of the file.


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
    return [each for arg in typing.get_args(tp) for each in _alternatives(arg)]


def _notes(tp: Any) -> list[Any]:
    """Return the annotations of the type, and of its alternatives."""
    tp, notes = _bare(tp)
    union = typing.get_origin(tp) in (Union, types.UnionType)
    return [*notes, *(note for member in (typing.get_args(tp) if union else ()) for note in _notes(member))]


def _section_type(tp: Any, value: Any) -> type[Section] | None:
    """Return the section that the value is read as; None if the type does not allow a section."""
    sections = [
        alternative
        for alternative in _alternatives(tp)
        if isinstance(alternative, type) and issubclass(alternative, Section)
    ]
    key = next((note.key for note in _notes(tp) if isinstance(note, ChosenBy)), None)
    if key is not None and isinstance(value, Mapping):
        sections = [section for section in sections if value.get(key) in section.words_of(key)] or sections
    return sections[0] if sections else None


def _child_type(tp: Any, value: Any, key: str | int) -> Any:
    """Return the type of the entry at a key or list position of the value; Any if it is unknown."""
    section = _section_type(tp, value)
    if section is not None:
        return _hints(section).get(str(key), Any)
    for alternative in _alternatives(tp):
        if typing.get_origin(alternative) is tuple:
            return typing.get_args(alternative)[0]
        if typing.get_origin(alternative) is Mapping:
            return typing.get_args(alternative)[1]
    return Any


def _is_list(tp: Any) -> bool:
    """Return whether the type allows a list, and does not allow a section."""
    return _section_type(tp, None) is None and any(
        typing.get_origin(alternative) is tuple for alternative in _alternatives(tp)
    )


def _default_of(tp: Any, value: Any, key: str) -> Any:
    """Return the plain default of a key of the section that the value is read as; None if the key has no default."""
    section = _section_type(tp, value)
    fields = {} if section is None else dict(zip(section.keys(), section.model_fields.values(), strict=True))
    default = fields[key].get_default(call_default_factory=True) if key in fields else None
    return list(default) if isinstance(default, tuple) else default


def _expanded(tp: Any, value: Any) -> Any:
    """Return the mapping that a text is the short form of; any other value as it is."""
    if not isinstance(value, str):
        return value
    section = _section_type(tp, value)
    keys = [note.key for note in _notes(tp) if isinstance(note, ChosenBy)]
    key = keys[0] if keys else section.SHORT if section else ""
    return {key: value} if key else value


class NoDataYetError(ConfigError):
    """The only mistake of a configuration is that no span of `data.path` has a file.

    Attributes:
      config: the configuration, not resolved.
    """

    def __init__(self, message: str, config: PipelineConfig) -> None:
        super().__init__(message)
        self.config = config


def load_config(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> PipelineConfig:
    """Load the configuration in a YAML (or JSON) file, check it, and append its `python_path` to `sys.path`.

    Args:
      path: the file; relative paths in it start at its folder.
      overrides: texts `key=value`, which replace the file's values.

    Raises:
      NoDataYetError: nothing else is wrong than that no span has a file.
      ConfigError: with a line for every mistake: file and line, the key's path, the value, the rule, the remedy.
    """
    file = FilePath(path).absolute()
    parsed = parse_yaml(_text_of(file, str(path)), file.name)
    if parsed.values is None:
        raise ConfigError(f"{path}: the file is empty; it must name at least data, label and features.")
    places: dict[str, int | str] = dict(parsed.lines)
    mistakes = parsed.duplicates
    values = apply_overrides(PipelineConfig, parsed.values, overrides, places, mistakes)
    config = _checked(values, file.parent, file.stem, _Places(file.name, places), mistakes)
    if config.python_path not in sys.path:
        sys.path.append(config.python_path)
    return config


def config_from_mapping(values: Mapping[str, Any], folder: str | os.PathLike[str] = ".") -> PipelineConfig:
    """Make a configuration from plain values (such as those of `PipelineConfig.to_mapping`), and check it.

    Args:
      values: as a YAML file has them.
      folder: relative paths start here.

    Raises:
      ConfigError: with a line for every mistake.
    """
    return _checked(values, FilePath(folder).absolute(), "pipeline", _Places("config", {}), [])


def _text_of(file: FilePath, given: str) -> str:
    try:
        return read_bounded(file, bounds.SETTINGS_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{given}: the file cannot be read ({error.strerror}); give the path of a YAML file."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{given}: byte {error.start} is not UTF-8; save the file as UTF-8.") from error
    except ValueError as error:
        raise ConfigError(f"{given}: {error}; shorten its lists, or keep their values in the data.") from error


def _dotted(path: tuple[str | int, ...]) -> str:
    """Return the path as a user writes it, also after `--set`."""
    return ".".join(map(str, path))


@dataclasses.dataclass(frozen=True)
class _Places:
    """Source of every key: its line in the file, or the `--set` that gave it."""

    name: str
    of: Mapping[str, int | str]

    @functools.cached_property
    def _overrides(self) -> list[tuple[str, str]]:
        return [(key, place) for key, place in self.of.items() if isinstance(place, str)]

    def find(self, problem: Problem) -> int | str | None:
        """Return the place of the problem's key, or of the nearest enclosing key; None if no such key has a place.

        If a `--set` gave a key inside this key, return the `--set` instead, because it made or changed the value.
        """
        near = _dotted(problem.path)
        while near:
            overrides = [place for key, place in self._overrides if key.startswith(f"{near}.")]
            if overrides and (near == _dotted(problem.path) or near not in self.of):
                return overrides[-1]
            if near in self.of:
                return self.of[near]
            near = near.rpartition(".")[0]
        return None

    def number(self, problem: Problem) -> int:
        """Return the line to sort by; a problem without a line comes last."""
        place = self.find(problem)
        return place if isinstance(place, int) else sys.maxsize

    def line(self, problem: Problem) -> str:
        """Return the problem as one line."""
        path, place = _dotted(problem.path), self.find(problem)
        prefix = place if isinstance(place, str) else f"{self.name}:{place}" if place else self.name
        return f"{prefix}: `{path}` {problem.text}" if path else f"{prefix}: the configuration {problem.text}"


def _checked(values: Any, folder: FilePath, name: str, places: _Places, mistakes: list[str]) -> PipelineConfig:
    problems: list[Problem] = []
    config = _read(values, folder, name, problems)
    # Listed before the rules list the files: a file that arrives in between must not make their finding an error.
    lacks_spans = config is not None and config.data is not None and _lacks_spans(config.data)
    if config is not None:
        spoilt = {str(problem.path[0]) for problem in problems}
        for needs, rule in RULES:
            if not needs & spoilt:
                problems += [Problem(tuple(key.split(".")), text) for key, text in rule(config)]
    mistakes = mistakes + [places.line(problem) for problem in sorted(problems, key=places.number)]
    if len(mistakes) == 1 and config is not None and lacks_spans:
        raise NoDataYetError(mistakes[0], config)
    if mistakes or config is None:
        raise ConfigError("\n".join(mistakes))
    return resolved(config)


def _lacks_spans(data: Data) -> bool:
    try:
        return "**" not in data.path and data.has_spans and not data_files(data)
    except NoFilesError:
        return True


def _read(values: Any, folder: FilePath, name: str, problems: list[Problem]) -> PipelineConfig | None:
    """Return the configuration with None for each section that has mistakes, and add the mistakes to `problems`."""
    if not isinstance(values, Mapping):
        problems.append(
            Problem((), f"is {values!r}: it must be a mapping (`key: value` lines) with data, label, features.")
        )
        return None
    defaults = {"name": name, "python_path": ".", "work_dir": f"runs/{values.get('name', name)}"}
    values = {**defaults, **{str(key): value for key, value in values.items()}}
    given = [key for key in ("label", "labels") if values.get(key) not in (None, {} if key == "labels" else None)]
    if len(given) != 1:
        what = "is given, and so is `label`" if given else "is missing"
        text = f"{what}: name the one value to predict in `label`, or several in `labels`."
        problems.append(Problem((given[-1] if given else "label",), text))
    try:
        config = PipelineConfig.model_validate(values)
    except ValidationError as error:
        problems += problems_of(error)
        config = _sound_sections(values, problems)
    return _with_absolute_paths(config, str(folder), problems)


def _sound_sections(values: Mapping[str, Any], problems: list[Problem]) -> PipelineConfig:
    """Return the configuration with None for each section that has mistakes, so that rules can check the others."""
    spoilt = {str(problem.path[0]) for problem in problems}
    fields: dict[str, Any] = {key: (Any, None) for key in spoilt if key in PipelineConfig.model_fields}
    sound = {key: value for key, value in values.items() if key not in spoilt}
    try:
        return create_model("SoundSections", __base__=PipelineConfig, **fields).model_validate(sound)
    except ValidationError as error:  # of `PipelineConfig.mistakes`, which runs only if each section is sound
        problems += problems_of(error)
        return _sound_sections(values, problems)


def _with_absolute_paths(config: PipelineConfig, folder: str, problems: list[Problem]) -> PipelineConfig:
    def absolute(section: Section, *keys: str) -> dict[str, str]:
        """Return the paths of the section, resolved; None and words for a previous run are left out."""
        given = {key: getattr(section, key) for key in section.PATHS}
        paths = {key: value for key, value in given.items() if value is not None and value not in WORDS}
        for key, value in paths.items():
            try:
                paths[key] = resolve(value, folder)
            except ConfigError as error:
                problems.append(Problem((*keys, key), str(error)))
        return paths

    sections = {key: section.model_copy(update=absolute(section, key)) for key, section in config.sections.items()}
    return config.model_copy(update={**sections, **absolute(config)})

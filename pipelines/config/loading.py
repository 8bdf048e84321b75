"""Loads a file, or plain values, as a checked `PipelineConfig`; reports all mistakes at once, one line each."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError, create_model

from embedding_core.errors import ConfigError
from embedding_core.schema import Problem, problems_of
from embedding_core.storage import bounds, read_bounded
from pipelines.config.bases import WORDS
from pipelines.config.data import Data
from pipelines.config.files import NoFilesError, data_files
from pipelines.config.overrides import apply_overrides
from pipelines.config.paths import resolve
from pipelines.config.pipeline_config import PipelineConfig
from pipelines.config.resolving import resolved
from pipelines.config.rules import RULES
from pipelines.config.yaml_text import parse_yaml


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
    mistakes = parsed.twice
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
        return data.has_spans and not data_files(data)
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
        config = _sound_sections(values, {str(problem.path[0]) for problem in problems})
    return _with_absolute_paths(config, str(folder), problems)


def _sound_sections(values: Mapping[str, Any], spoilt: set[str]) -> PipelineConfig:
    """Return the configuration with None for each section that has mistakes, so that rules can check the others."""
    fields: dict[str, Any] = {key: (Any, None) for key in spoilt if key in PipelineConfig.model_fields}
    sound = {key: value for key, value in values.items() if key not in spoilt}
    return create_model("SoundSections", __base__=PipelineConfig, **fields).model_validate(sound)


def _with_absolute_paths(config: PipelineConfig, folder: str, problems: list[Problem]) -> PipelineConfig:
    def absolute(section: Any, *path: str) -> Any:
        """Return the section (or text) with its path resolved; None and words for a previous run are kept."""
        field = path[-1] if len(path) > 1 else None
        value = getattr(section, field) if field and section is not None else section
        if value is None or value in WORDS:
            return section
        try:
            value = resolve(value, folder)
        except ConfigError as error:
            problems.append(Problem(path, str(error)))
        return section.model_copy(update={field: value}) if field else value

    paths = {
        "data": "path",
        "push": "destination",
        "evaluation": "baseline",
        "vocabulary_evolution": "base",
        "warm_start": "checkpoint",
    }
    sections = {key: absolute(getattr(config, key), key, field) for key, field in paths.items()}
    for field in ("requests", "against"):
        sections["shadow"] = absolute(sections.get("shadow", config.shadow), "shadow", field)
    texts = {key: absolute(getattr(config, key), key) for key in ("work_dir", "metadata", "python_path")}
    return config.model_copy(update={**sections, **texts})

"""What VocabularyGen counts: its JSON parameters as checked, frozen values; no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from embedding_core.config import ColumnConfig, EvolutionMode
from embedding_core.errors import ConfigError, nearest
from embedding_core.schema import Name, read

__all__ = ["Base", "CountedFeature", "CountingPlan", "VocabularyRule", "evolution_from_json", "plan_from_json"]

_COLUMN_KEYS = tuple(name for name in ColumnConfig.model_fields if name != "dtype")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyRule:
    """Which tokens of a vocabulary get rows, and how it is counted.

    Attributes:
      min_count: how often a token has to occur.
      max_size: at most that many tokens have rows; None for all.
      parts: in how many parts it is put together; with more than one, no worker holds it as a whole.
    """

    min_count: int = 1
    max_size: int | None = None
    parts: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountedFeature:
    """One feature to count.

    Attributes:
      name: the feature's name.
      column: where its tokens come from; the dtype is that of the data once it is known.
      multivalent: whether a row may hold several values, or None to find it out from the data.
      vocabulary: the vocabulary that its tokens are counted into.
    """

    name: str
    column: ColumnConfig
    multivalent: bool | None
    vocabulary: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    """The vocabularies of an earlier run, and what becomes of their tokens (`embedding_core.vocabulary.evolution`).

    Attributes:
      folder: of the earlier Vocabularies artifact.
      sizes: how many tokens each vocabulary there has.
      mode: "append" or "rerank".
      expire_after: runs after which a token expires; None for never.
    """

    folder: str
    sizes: Mapping[str, int]
    mode: EvolutionMode = "rerank"
    expire_after: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingPlan:
    """What a worker needs to count: features, rules by vocabulary, Transform's output and a base if there are any."""

    features: tuple[CountedFeature, ...]
    rules: Mapping[str, VocabularyRule]
    transform_graph: str | None = None
    base: Base | None = None

    def has_base(self, vocabulary: str) -> bool:
        """Whether the earlier run had a vocabulary of that name."""
        return self.base is not None and vocabulary in self.base.sizes

    def feeding(self, vocabulary: str) -> list[CountedFeature]:
        """The features whose tokens are counted into a vocabulary."""
        return [feature for feature in self.features if feature.vocabulary == vocabulary]

    def is_private(self, vocabulary: str) -> bool:
        """Whether any column that feeds a vocabulary is private."""
        return any(feature.column.private for feature in self.feeding(vocabulary))


def plan_from_json(features: str, vocabularies: str, transform_graph: str | None = None) -> CountingPlan:
    """Read and check the component's parameters.

    Args:
      features: JSON list of {"name", "column": {fields of ColumnConfig without dtype}, "vocabulary"}; a column
        without "multivalent" has its valency found in the data. Other keys are TableConfigGen's.
      vocabularies: JSON object {vocabulary: {"min_count", "max_size", "parts"}}; those not in it keep all tokens.
      transform_graph: where Transform's output is, if there is one.

    Raises:
      ConfigError: not such JSON, or a value that breaks its rule.
    """
    counted = tuple(_feature(entry) for entry in _parsed("features", features, list))
    _check_unique(feature.name for feature in counted)
    rules = {feature.vocabulary: VocabularyRule() for feature in counted}
    for name, rule in _parsed("vocabularies", vocabularies, dict).items():
        if name not in rules:
            raise ConfigError(f"vocabulary {name!r} has no feature: it must be one of {sorted(rules)}.")
        rules[name] = _rule(name, rule)
    for feature in counted:
        if feature.column.after_transform and transform_graph is None:
            raise ConfigError(
                f"`after_transform` of column {feature.column.name!r} is true, but there is no `transform_graph`: "
                "pass Transform's output to VocabularyGen, or read the raw column."
            )
    return CountingPlan(features=counted, rules=dict(sorted(rules.items())), transform_graph=transform_graph)


def evolution_from_json(evolution: str, folder: str, sizes: Mapping[str, int]) -> Base:
    """Read and check what becomes of the tokens of a base.

    Args:
      evolution: JSON object with any of "mode" and "expire_after".
      folder: of the base.
      sizes: how many tokens each vocabulary of the base has.

    Raises:
      ConfigError: not such JSON, or a value that breaks its rule.
    """
    given = _parsed("evolution", evolution, dict)
    _check_keys("`evolution`", given, ("mode", "expire_after"))
    modes = get_args(EvolutionMode)
    if given.get("mode", "rerank") not in modes:
        raise ConfigError(f"`evolution.mode` is {given['mode']!r}: it must be one of {', '.join(modes)}.")
    if given.get("expire_after") is not None:
        _check_whole("evolution.expire_after", given["expire_after"])
    return Base(folder=folder, sizes=dict(sizes), **given)


def _parsed(key: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except (TypeError, json.JSONDecodeError) as error:
        raise ConfigError(f"`{key}` is {text!r}: it must be JSON ({error}).") from error
    if not isinstance(value, kind) or (kind is list and not value):
        raise ConfigError(f"`{key}` is {text!r}: it must be a JSON {'object' if kind is dict else 'list, not empty'}.")
    return value


def _check_keys(owner: str, given: object, allowed: Iterable[str]) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{owner} is {given!r}: it must be a JSON object.")
    for key in given:
        if key not in allowed:
            raise ConfigError(f"{owner} has the unknown key {key!r}: {nearest(key, allowed)}")


def _feature(entry: Any) -> CountedFeature:
    if not isinstance(entry, Mapping) or not {"name", "column"} <= set(entry):
        raise ConfigError(f'`features` holds {entry!r}: each must be an object with "name" and "column".')
    read(Name, entry["name"], "name of a feature")
    column, vocabulary = entry["column"], entry.get("vocabulary") or entry["name"]
    read(Name, vocabulary, "name of a vocabulary")
    _check_keys(f"`column` of feature {entry['name']!r}", column, _COLUMN_KEYS)
    if "name" not in column:
        raise ConfigError(f"`column` of feature {entry['name']!r} has no `name`: name the column in the examples.")
    multivalent = column.get("multivalent")
    return CountedFeature(
        name=entry["name"],
        column=ColumnConfig(**{**column, "multivalent": bool(multivalent)}),
        multivalent=multivalent,
        vocabulary=vocabulary,
    )


def _check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"feature {name!r} stands twice: names must be unique.")
        seen.add(name)


def _rule(name: str, rule: Any) -> VocabularyRule:
    _check_keys(f"`vocabularies.{name}`", rule, ("min_count", "max_size", "parts"))
    for key, value in rule.items():
        if not (key == "max_size" and value is None):
            _check_whole(f"vocabularies.{name}.{key}", value)
    return VocabularyRule(**rule)


def _check_whole(key: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"`{key}` is {value!r}: it must be a whole number >= 1.")

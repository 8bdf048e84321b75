"""Plans what VocabularyGen counts, which tokens get rows, and how vocabularies evolve from those of a previous run.

This module does not use TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from embedding_core.config import ColumnConfig, EvolutionMode
from embedding_core.errors import ConfigError
from embedding_core.schema import ByName, Json, Name, Positive, Section, read


class VocabularyRule(Section):
    """Which tokens of a vocabulary get a row.

    Attributes:
      min_count: least number of occurrences of a token in the train split.
      max_size: largest number of tokens; the most frequent are kept. null keeps all.
      parts: number of parts in which the vocabulary is counted and sorted; above 1 if it does not fit into one worker.
    """

    min_count: Positive = 1
    max_size: Positive | None = None
    parts: Positive = 1

    def counting_rule(self) -> Json:
        """Return the fields that the counting depends on, without those of a subclass; `parts` only if above 1."""
        rule: Json = {"min_count": self.min_count, "max_size": self.max_size}
        return {**rule, "parts": self.parts} if self.parts > 1 else rule


class Evolution(Section):
    """How vocabularies evolve from those of a previous run; `embedding_core.vocabulary.vocabulary` has the rule.

    Attributes:
      mode: "rerank" sorts all tokens again, so rows move; "append" leaves the tokens of the previous run in their rows.
      expire_after: number of consecutive runs without `min_count` occurrences after which a token expires; null keeps
        it.
    """

    mode: EvolutionMode = "rerank"
    expire_after: Positive | None = None

    def evolution_rule(self) -> Json:
        """Return `mode` and `expire_after`, without the fields of a subclass."""
        return {"mode": self.mode, "expire_after": self.expire_after}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountedFeature:
    """One feature to count.

    Attributes:
      name: the feature's name.
      column: source of its tokens; the dtype is that of the data once it is known.
      multivalent: whether a row may hold several values, or None to infer it from the data.
      vocabulary: the vocabulary that its tokens are counted into.
      may_be_empty: whether the column may be empty in this run if the base has the vocabulary.
    """

    name: str
    column: ColumnConfig
    multivalent: bool | None
    vocabulary: str
    may_be_empty: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    """The vocabularies of a previous run, and how the new ones evolve from them.

    Attributes:
      folder: folder of the previous run's Vocabularies artifact.
      sizes: number of tokens of each vocabulary there.
      columns: the column of each feature there.
      evolution: the rule.
    """

    folder: str
    sizes: Mapping[str, int]
    columns: Mapping[str, ColumnConfig]
    evolution: Evolution


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingPlan:
    """What a worker needs to count.

    Attributes:
      features: features to count.
      rules: rule of each vocabulary, by name.
      transform_graph: folder of Transform's output, or None.
      base: vocabularies of a previous run, or None.
    """

    features: tuple[CountedFeature, ...]
    rules: Mapping[str, VocabularyRule]
    transform_graph: str | None = None
    base: Base | None = None

    def base_of(self, vocabulary: str) -> Base | None:
        """Return the base if it has a vocabulary of that name."""
        return self.base if self.base is not None and vocabulary in self.base.sizes else None

    def feeding(self, vocabulary: str) -> list[CountedFeature]:
        """Return the features whose tokens are counted into a vocabulary."""
        return [feature for feature in self.features if feature.vocabulary == vocabulary]

    def is_private(self, vocabulary: str) -> bool:
        """Return whether any column that feeds a vocabulary is private."""
        return any(feature.column.private for feature in self.feeding(vocabulary))


def plan_counting(features: Any, rules: Mapping[str, Json], transform_graph: str | None = None) -> CountingPlan:
    """Check the component's parameters, and plan the counting.

    Args:
      features: list of {"name", "column": {fields of ColumnConfig without dtype}, "vocabulary", "may_be_empty"}; if a
        column does not have "multivalent", its valency is inferred from the data. Other keys are for TableConfigGen.
      rules: fields of a `VocabularyRule` by vocabulary; a vocabulary without a rule keeps all tokens.
      transform_graph: folder of Transform's output, if there is one.

    Raises:
      ConfigError: a value breaks its rule.
    """
    if not isinstance(features, list) or not features:
        raise ConfigError(f"`features` is {features!r}: it must be a list with at least one feature.")
    counted = tuple(_feature(entry) for entry in features)
    _check_unique(feature.name for feature in counted)
    names = sorted({feature.vocabulary for feature in counted})
    given = read(ByName[VocabularyRule], rules, "vocabularies")
    for name in given:
        if name not in names:
            raise ConfigError(f"vocabulary {name!r} has no feature: it must be one of {names}.")
    for feature in counted:
        if feature.column.after_transform and transform_graph is None:
            raise ConfigError(
                f"`after_transform` of column {feature.column.name!r} is true, but `transform_graph` is missing: "
                "pass Transform's output to VocabularyGen, or read the raw column."
            )
    all_rules = {name: given.get(name, VocabularyRule()) for name in names}
    return CountingPlan(features=counted, rules=all_rules, transform_graph=transform_graph)


def _feature(entry: Any) -> CountedFeature:
    if not isinstance(entry, Mapping) or "name" not in entry or not isinstance(entry.get("column"), Mapping):
        raise ConfigError(f'`features` holds {entry!r}: each must be an object with "name" and "column", an object.')
    name, given = entry["name"], entry["column"]
    vocabulary = entry.get("vocabulary") or name
    read(Name, name, "name of a feature")
    read(Name, vocabulary, "name of a vocabulary")
    if "dtype" in given:
        raise ConfigError(f"`column` of feature {name!r} has a `dtype`: it is that of the data; leave it out.")
    is_known = given.get("multivalent") is not None
    known = given if is_known else {**given, "multivalent": False}
    column = read(ColumnConfig, known, f"the column of feature {name!r}")
    return CountedFeature(
        name=name,
        column=column,
        multivalent=column.multivalent if is_known else None,
        vocabulary=vocabulary,
        may_be_empty=bool(entry.get("may_be_empty")),
    )


def _check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"duplicate feature {name!r}: names must be unique.")
        seen.add(name)

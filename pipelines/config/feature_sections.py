"""Declares the sections that say what the model sees: features and their vocabularies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ValidationError, WrapValidator

from components.vocabulary_gen.vocabulary_rules import Evolution, VocabularyRule
from embedding_core.schema import NAME_RULE, Count, Listed, Mistakes, Name, Rule, Section, Text


def _feature_name(value: Any, handler: Any) -> Any:
    try:
        return handler(value)
    except ValidationError as error:
        remedy = f"A column of another name is written {{name: ..., column: {value!r}}}."
        raise ValueError(f"it must be {NAME_RULE}. {remedy}") from error


FeatureName = Annotated[Name, WrapValidator(_feature_name)]
Length = Annotated[
    Count | Literal["auto", "p50", "p90", "p95", "p99", "max"],
    Rule("a whole number of at least 0, or one of auto, p50, p90, p95, p99, max"),
]


class Dense(Section):
    """A number per row.

    Attributes:
      name: name of the feature, in the model's inputs and in Transform's output.
      column: column of the data; null is the name.
      log1p: whether sign(x) log(1 + |x|) is taken before scaling, for amounts with a long tail.
    """

    SHORT = "name"

    name: FeatureName
    column: Text | None = None
    log1p: bool = False

    @property
    def source(self) -> str:
        """The column of the data."""
        return self.column or self.name


class Categorical(Section):
    """Tokens per row, looked up in an embedding table.

    Attributes:
      name: name of the feature, in the model's inputs.
      column: column of the data or, with `after_transform`, of Transform's output; null is the name.
      separator: text between two tokens of one value; null does not split.
      multivalent: whether a row holds a list of values. CSV files have no lists: use a `separator`.
      vocabulary: name of the vocabulary; features of one vocabulary share its tokens. Null is the table's name if
        `table` is given, else the feature's name.
      table: name of the table; features of one table share its rows. Null is the vocabulary's name.
      private: whether tokens appear in reports and lineage only as digests; an evaluation slice then cannot name
        the column, and a row filter may only ask whether it is `present`.
      after_transform: whether tokens are read from the output of your `preprocessing_fn`.
      max_sequence_length: number of a row's first tokens that are kept, as a sequence of vectors; 0 combines all
        tokens into one vector. "p50", "p90", "p95" and "p99" take that percentile of the number of tokens per row,
        "max" the largest number; "auto" is "p95".
    """

    SHORT = "name"

    name: FeatureName
    column: Text | None = None
    separator: Text | None = None
    multivalent: bool = False
    vocabulary: Name | None = None
    table: Name | None = None
    private: bool = False
    after_transform: bool = False
    max_sequence_length: Length = 0

    @property
    def source(self) -> str:
        """The column that the tokens come from."""
        return self.column or self.name

    @property
    def vocabulary_name(self) -> str:
        """The vocabulary that the tokens are counted into."""
        return self.vocabulary or self.table or self.name

    @property
    def table_name(self) -> str:
        """The table that the tokens are looked up in."""
        return self.table or self.vocabulary_name


class Features(Section):
    """What the model sees.

    Attributes:
      categorical: features that are embedded; at least one.
      dense: features that are numbers.
    """

    categorical: Listed[Categorical]
    dense: Listed[Dense] = ()

    def mistakes(self) -> Mistakes:
        """Yield what breaks the rules over several fields."""
        if not self.categorical:
            yield (
                "categorical",
                "is []: it must name at least one feature to embed.",
            )
        seen: set[str] = set()
        for kind, items in (("categorical", self.categorical), ("dense", self.dense)):
            for index, name in enumerate(item.name for item in items):
                if name in seen:
                    yield f"{kind}.{index}.name", f"is {name!r}, a duplicate: names of features must be unique."
                seen.add(name)
        yield from self._shared("table_name", "vocabulary_name", "table")
        yield from self._shared("vocabulary_name", "private", "vocabulary")

    def _shared(self, group: str, value: str, kind: str) -> Mistakes:
        first: dict[str, Categorical] = {}
        for index, feature in enumerate(self.categorical):
            other = first.setdefault(getattr(feature, group), feature)
            if getattr(other, value) != getattr(feature, value):
                key = "vocabulary" if kind == "table" else value
                here, there, shared = getattr(feature, value), getattr(other, value), getattr(feature, group)
                text = f"is {here!r}, but {there!r} for feature {other.name!r} of the same {kind} {shared!r}: "
                yield f"categorical.{index}.{key}", f"{text}features that share a {kind} must agree; make them equal."


ASSUMED_TOKENS = 1_000_000
"""Number of tokens that plans assume for a vocabulary without `max_size`."""


class VocabularyLimits(VocabularyRule):
    """Which tokens of a vocabulary get a row of their own, and how many rows the other tokens share.

    Attributes:
      oov_rows: number of rows that the other tokens share; 0 gives these tokens a zero vector.
    """

    oov_rows: Count = 1


class VocabularyEvolution(Evolution):
    """How vocabularies evolve from those of a previous run; `embedding_core.vocabulary.evolution` has the rule.

    Attributes:
      base: vocabularies to start from: "pushed", "served" or "trained" (those of the checkpoint that this word selects
        in `warm_start`), or the URI of a Vocabularies artifact. "latest" is the former name of "trained".
    """

    SHORT = "base"
    PATHS = ("base",)

    base: Text

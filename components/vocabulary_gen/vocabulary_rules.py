"""Declares which tokens of a vocabulary get rows, and how a vocabulary evolves from that of a previous run."""

from __future__ import annotations

from embedding_core.config import EvolutionMode
from embedding_core.schema import Json, Positive, Section


class VocabularyRule(Section):
    """Which tokens of a vocabulary get a row.

    Attributes:
      min_count: least number of occurrences in the train split that gives a token a row.
      max_size: largest number of tokens; the most frequent ones are kept. Null keeps all.
      parts: number of parts in which the vocabulary is counted, sorted and merged; more than 1 if one worker cannot
        hold it.
    """

    min_count: Positive = 1
    max_size: Positive | None = None
    parts: Positive = 1

    def counting_rule(self) -> Json:
        """Return the fields that the counting depends on, without those of a subclass; `parts` only if above 1."""
        rule: Json = {"min_count": self.min_count, "max_size": self.max_size}
        return {**rule, "parts": self.parts} if self.parts > 1 else rule


class Evolution(Section):
    """How vocabularies evolve from those of a previous run; `embedding_core.vocabulary.evolution` has the rule.

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

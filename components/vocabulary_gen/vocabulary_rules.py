"""Declares which tokens of a vocabulary get rows, and how a vocabulary evolves from that of a previous run."""

from __future__ import annotations

from embedding_core.config import EvolutionMode
from embedding_core.schema import Json, Positive, Section


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

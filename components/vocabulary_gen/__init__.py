"""VocabularyGen: the tokens of all categorical features, counted exactly in one pass."""

from components.vocabulary_gen.component import VocabularyGen

__all__ = ["VocabularyGen"]

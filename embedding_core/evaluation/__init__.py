"""Evaluates a trained model on its eval split: counts, ranking metrics of a retrieval model, and rules for a push."""

from embedding_core.evaluation.label_scores import (
    FeatureCounts,
    LabelCounts,
    LabelScore,
    SplitCounts,
    count_split,
    score_labels,
)
from embedding_core.evaluation.push_rules import Check, judge
from embedding_core.evaluation.retrieval_figures import RetrievalFigures, measure_retrieval
from embedding_core.quality_rules import Rules

__all__ = [
    "Check",
    "FeatureCounts",
    "LabelCounts",
    "LabelScore",
    "RetrievalFigures",
    "Rules",
    "SplitCounts",
    "count_split",
    "judge",
    "measure_retrieval",
    "score_labels",
]
